#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vllm_bench.py --lynx PROGRAM --vllm PROGRAM DIRECTORY: speeds of `lynx serve --colocated` beside
those of `vllm serve` on the CPU, the same Hugging Face directory, BF16, in alternation.

Both servers run all the time, one of them idle: a worker of vLLM spins for a second after an answer, so
each turn begins after a rest. Neither has a prefix cache to use, as every round has new prompts. `lynx
bench serve` asks them. Standard output has JSON lines: `setting` of vLLM; `run` for every round of each
program; `ratio` for every case with the median, least and largest of both and of their ratio round by
round. A prompt's speed is its tokens by the time to the first token, a batch's the sequences by the time
per output token, so HTTP and the schedulers are part of both."""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

START_LIMIT_S = 900  # the first start of vLLM compiles


def prefill(tokens):
    return {"random-input-len": tokens, "random-output-len": 1, "num-prompts": 2}, "median_ttft_ms", tokens


def batch(sequences):
    return ({"random-input-len": 16, "random-output-len": 128, "num-prompts": sequences,
             "max-concurrency": sequences}, "median_tpot_ms", sequences)


# name: (options of lynx bench serve, its figure, tokens in that time)
CASES = {"prefill:512": prefill(512), "prefill:4096": prefill(4096), "decode:0": batch(1), "batch:8": batch(8)}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def server(command, environment, check):
    """Yields the URL of `command --port P` once it answers `check`."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log,
                                   env={**os.environ, **environment})
        try:
            url, limit = f"http://127.0.0.1:{port}", time.monotonic() + START_LIMIT_S
            while not is_up(url + check):
                if process.poll() is not None or time.monotonic() > limit:
                    log.seek(0)
                    sys.exit(f"{command[0]} does not start:\n{log.read()[-3000:]}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


def is_up(url):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).status == 200
    return False


def lynx_server(args):
    return server([args.lynx, "serve", "--colocated", "--model", args.model, "--host", "127.0.0.1",
                   "--threads", str(args.threads), "--kv-memory", "2G"], {}, "/ready")


def vllm_server(args):
    environment = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2",
                   "VLLM_CPU_OMP_THREADS_BIND": args.bind,
                   # its compiler looks for tools beside the Python that runs it
                   "PATH": os.path.dirname(os.path.abspath(args.vllm)) + ":" + os.environ["PATH"]}
    if args.preload:
        environment["LD_PRELOAD"] = args.preload
    return server([args.vllm, "serve", args.model, "--host", "127.0.0.1", "--dtype", "bfloat16",
                   "--max-model-len", "8192", "--no-enable-prefix-caching"], environment, "/health")


def measure(args, case, urls):
    """Figures of each program, one of every round."""
    options, figure, tokens = CASES[case]
    options = {"base-url": urls["lynx"], "peer": f"vllm={urls['vllm']}", "endpoint": "/v1/completions",
               "rounds": args.rounds, "temperature": 0, "max-concurrency": 1,
               "turn-pause-sec": args.pause, **options}
    command = [args.lynx, "bench", "serve", "--ignore-eos"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    speeds = {"lynx": [], "vllm": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        for line in map(json.loads, bench.stdout):
            if line["kind"] != "round":
                continue
            if line["failed"]:
                sys.exit(f"{case}: {line['failed']} requests to {line['server']} failed")
            speeds[line["server"]].append(1e3 * tokens / line[figure])
            say(type="run", round=line["round"], case=case, program=line["server"],
                tok_per_s=round(speeds[line["server"]][-1], 3), ms=round(line[figure], 3))
    if bench.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {bench.returncode}")
    return speeds


def say(**line):
    print(json.dumps(line), flush=True)


def figures(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
            "max": round(max(values), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", metavar="DIRECTORY")
    parser.add_argument("--lynx", default="build/release/lynx")
    parser.add_argument("--vllm", required=True, help="bin/vllm of its virtual environment")
    parser.add_argument("--threads", default=2, type=int, help="of Lynx")
    parser.add_argument("--bind", default="0-1", help="cores of vLLM's threads (VLLM_CPU_OMP_THREADS_BIND)")
    parser.add_argument("--preload", default="", help="libraries for vLLM's LD_PRELOAD")
    parser.add_argument("--cases", default=list(CASES), type=lambda s: s.split(","),
                        help=f"of {','.join(CASES)}")
    parser.add_argument("--pause", default=2, type=float, help="rest before each turn, seconds")
    parser.add_argument("--rounds", default=5, type=int, help="5 or more")
    args = parser.parse_args()
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"unknown case {unknown[0]}; there are {', '.join(CASES)}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # servers end, too
    with vllm_server(args) as vllm, lynx_server(args) as lynx:
        say(type="setting", bind=args.bind, preload=args.preload, threads=args.threads,
            pause=args.pause)
        for case in args.cases:
            speeds = measure(args, case, {"lynx": lynx, "vllm": vllm})
            say(type="ratio", model=os.path.basename(os.path.abspath(args.model)), case=case,
                lynx=figures(speeds["lynx"]), vllm=figures(speeds["vllm"]),
                ratio=figures([a / b for a, b in zip(speeds["lynx"], speeds["vllm"])]))


if __name__ == "__main__":
    main()
