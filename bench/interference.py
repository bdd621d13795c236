#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What long prompts do to answers that run: gaps between tokens, alone and while prompts are computed.

    bench/interference.py --model M                       a split cluster and a colocated engine, both
                                                          started here with the same cores
    bench/interference.py --server a=URL --server b=URL   OpenAI servers that run already

In every round each server answers --streams requests, undisturbed for --idle-s seconds, then while
--prompts prompts of real text come, then undisturbed again; the next round begins with the next
server and has other prompts, so no prefix cache knows them. A gap is the time between two events of
a stream; it is *loaded* when a part of it lies between the first prompt's start and the last one's
end, else *idle*. Standard output has JSON lines: `round`; `server` with median, least and largest of
every figure; `ratio` of the first server to each other one, round by round.

The split cluster has one prefill and one decode daemon, each with one half of the cores and threads
to itself; the colocated engine has all. Both gateways, and this client, run where there is room."""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_LIMIT_S = 180
OPENINGS = ["Once upon a time, in a small village by the sea,", "The history of the railway began when",
            "Dear diary, today I went to the market and", "How to build a wooden boat: first of all,",
            "In the year 2150 the last city on Earth", "My grandmother used to tell me that",
            "The most important laws of physics are", "A short guide to growing tomatoes:"]


# --- servers -------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def lynx_cluster(args, name, roles):
    """Yields the URL of a gateway. roles: of the daemons, with the cores of each."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as children:
        ports = [free_port() for _ in range(3)]
        threads = len(next(iter(roles.values())))
        config = {"model": os.path.abspath(args.model), "hostname": "127.0.0.1", "port": ports[0],
                  "threads": threads, "kv_cache_config": {"host_cache_size": args.kv_memory},
                  "colocated": "prefill" not in roles,
                  "scheduler": {"itl_target_ms": args.itl_target_ms},
                  "context_servers": {"num_instances": 1, "urls": [f"127.0.0.1:{ports[1]}"]},
                  "generation_servers": {"num_instances": 1, "urls": [f"127.0.0.1:{ports[2]}"]}}
        file = os.path.join(directory, "cluster.yaml")
        pathlib.Path(file).write_text(json.dumps(config))  # JSON is YAML
        log = children.enter_context(open(os.path.join(args.logs or directory, f"{name}.log"), "w+"))
        processes = []
        for role, cores in {**roles, "gateway": os.sched_getaffinity(0)}.items():
            processes.append(subprocess.Popen(
                [args.lynx, role, "--config", file], stdout=log, stderr=log,
                preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores)))
            children.callback(stop, processes[-1])
        url = f"http://127.0.0.1:{ports[0]}"
        limit = time.monotonic() + START_LIMIT_S
        while not is_ready(url):
            if time.monotonic() > limit or any(p.poll() is not None for p in processes):
                log.seek(0)
                sys.exit(f"{name} does not start:\n{log.read()[-2000:]}")
            time.sleep(0.1)
        yield url


def is_ready(url):
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url + "/ready", timeout=5).status == 200
    return False


def stop(process):
    process.terminate()
    try:
        process.wait(40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def servers(args):
    """Yields {name: URL}."""
    with contextlib.ExitStack() as clusters:
        urls = dict(server.split("=", 1) for server in args.server)
        if args.model:
            cores = sorted(os.sched_getaffinity(0))[:args.threads]
            half = len(cores) // 2
            for name, roles in {"split": {"prefill": cores[:half], "decode": cores[half:]},
                                "colocated": {"decode": cores}}.items():
                urls[name] = clusters.enter_context(lynx_cluster(args, name, roles))
        yield urls


# --- requests ------------------------------------------------------------------------------------

def get_json(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


async def complete(url, body, times):
    """One streamed completion: appends the time of each event with a token to `times`."""
    where = urllib.parse.urlsplit(url)
    body = json.dumps({"stream": True, "temperature": 0, "ignore_eos": True, **body}).encode()
    reader, writer = await asyncio.open_connection(where.hostname, where.port or 80, limit=1 << 20)
    try:
        writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
                     f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{url}: {(status + await reader.read(4000)).decode(errors='replace')}")
        async for line in reader:
            if line.startswith(b'data: {"error"'):
                raise RuntimeError(f"{url}: {line.decode()}")
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
            elif line.startswith(b"data: [DONE]"):
                return
        raise RuntimeError(f"{url}: the stream broke off")
    finally:
        writer.close()


def real_prompts(url, model, number, tokens):
    """Token ids of pieces of bench/prompts, no two with the same beginning."""
    text = "".join(file.read_text() for file in sorted((ROOT / "bench/prompts").glob("*.txt")))
    ids = get_json(url + "/tokenize", {"model": model, "prompt": text})["tokens"]
    if len(ids) < tokens + number:
        sys.exit(f"--prompt-tokens: there are only {len(ids)}")
    return [ids[i * ((len(ids) - tokens) // number):][:tokens] for i in range(number)]


# --- a round -------------------------------------------------------------------------------------

async def send_prompts(args, url, model, prompts):
    """All of them, at most --prompts-at-once at a time. Returns the times to their first tokens."""
    room = asyncio.Semaphore(args.prompts_at_once)

    async def send(due, prompt):
        await asyncio.sleep(due)
        async with room:
            times, start = [], time.monotonic()
            await complete(url, {"model": model, "prompt": prompt, "max_tokens": args.output_tokens}, times)
            return times[0] - start

    return await asyncio.gather(*(send(args.every_s * i, p) for i, p in enumerate(prompts)))


async def measure(args, url, model, prompts):
    streams = [[] for _ in range(args.streams)]
    tasks = [asyncio.create_task(complete(url, {
        "model": model, "prompt": OPENINGS[i % len(OPENINGS)], "max_tokens": args.answer_tokens}, times))
        for i, times in enumerate(streams)]
    try:
        while min(map(len, streams)) < 8 and not any(task.done() for task in tasks):
            await asyncio.sleep(0.05)
        first = time.monotonic()
        await asyncio.sleep(args.idle_s / 2)
        begin = time.monotonic()
        ttfts = await send_prompts(args, url, model, prompts)
        end = time.monotonic()
        await asyncio.sleep(args.idle_s / 2)
        for task in tasks:
            if task.done():
                task.result()
                sys.exit("an answer ended before the prompts: longer --answer-tokens or fewer --prompts")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(1)  # the server drops what was cancelled
    return figures(streams, first, begin, end, ttfts)


def figures(streams, first, begin, end, ttfts):
    gaps = [pair for times in streams for pair in zip(times, times[1:]) if pair[0] >= first]
    loaded = [1e3 * (b - a) for a, b in gaps if b > begin and a < end]
    idle = [1e3 * (b - a) for a, b in gaps if b <= begin or a >= end]
    result = {"loaded_s": end - begin, "loaded_events_per_s": len(loaded) / (end - begin),
              "ttft_ms": 1e3 * statistics.median(ttfts), "max_ttft_ms": 1e3 * max(ttfts)}
    for name, values in (("idle", idle), ("loaded", loaded)):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        result |= {f"{name}_p50_ms": cuts[49], f"{name}_p90_ms": cuts[89], f"{name}_p99_ms": cuts[98],
                   f"{name}_max_ms": max(values)}
    result["loaded_p50_by_idle_p50"] = result["loaded_p50_ms"] / result["idle_p50_ms"]
    result["loaded_p99_by_idle_p50"] = result["loaded_p99_ms"] / result["idle_p50_ms"]
    result["loaded_p99_by_idle_p99"] = result["loaded_p99_ms"] / result["idle_p99_ms"]
    result["answer_tokens"] = statistics.median(map(len, streams))
    return result


# --- report --------------------------------------------------------------------------------------

def say(**line):
    print(json.dumps(line), flush=True)


def spread(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
            "max": round(max(values), 3)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--server", default=[], action="append", metavar="NAME=URL")
    parser.add_argument("--model", help="start the split cluster and the colocated engine with it")
    parser.add_argument("--lynx", default=str(ROOT / "build/release/lynx"))
    parser.add_argument("--threads", default=2, type=int, help="and cores, of each of the two")
    parser.add_argument("--itl-target-ms", default=50, type=int)
    parser.add_argument("--kv-memory", default="2G", help="of each daemon")
    parser.add_argument("--logs", help="keep the daemons' logs in this directory")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--idle-s", default=10, type=float)
    parser.add_argument("--streams", default=4, type=int)
    parser.add_argument("--answer-tokens", default=8000, type=int, help="of a stream, at most")
    parser.add_argument("--prompts", default=3, type=int, help="in a round")
    parser.add_argument("--prompt-tokens", default=4096, type=int)
    parser.add_argument("--prompts-at-once", default=1, type=int)
    parser.add_argument("--every-s", default=0, type=float, help="from one prompt to the next, if there is room")
    parser.add_argument("--output-tokens", default=8, type=int, help="of each prompt")
    args = parser.parse_args()
    if not args.model and not args.server:
        parser.error("give --model or --server")
    if args.model and (args.threads < 2 or args.threads % 2 or args.threads > len(os.sched_getaffinity(0))):
        parser.error("--threads: an even number, no more than there are cores")
    return args


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # servers end, too
    with servers(args) as urls:
        names = list(urls)
        model = {name: get_json(url + "/v1/models")["data"][0]["id"] for name, url in urls.items()}
        first = names[0]
        prompts = real_prompts(urls[first], model[first], args.rounds * args.prompts, args.prompt_tokens)
        rounds = {name: [] for name in names}
        for round_ in range(args.rounds):
            for turn in range(len(names)):
                name = names[(round_ + turn) % len(names)]
                result = asyncio.run(measure(args, urls[name], model[name],
                                             prompts[round_ * args.prompts:][:args.prompts]))
                rounds[name].append(result)
                say(kind="round", round=round_ + 1, server=name,
                    **{key: round(value, 3) for key, value in result.items()})
    for name, results in rounds.items():
        say(kind="server", server=name, **{key: spread([r[key] for r in results]) for key in results[0]})
    for peer, key in itertools.product(names[1:], rounds[first][0]):
        say(kind="ratio", metric=key, server=first, peer=peer,
            **spread([a[key] / b[key] for a, b in zip(rounds[first], rounds[peer])]))


if __name__ == "__main__":
    main()
