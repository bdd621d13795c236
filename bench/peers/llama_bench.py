#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama_bench.py --lynx PROGRAM --llama DIRECTORY MODEL.gguf ...: speeds of `lynx bench engine` beside
those of llama-bench and llama-batched-bench, the same model file and number of threads, in alternation.

llama.cpp runs at its best settings: for each case those of flash attention and KV type that are fastest
in a first run, with the first model and the most threads. Then every round runs each case of each
program once; the next round begins with the other program. Standard output has JSON lines: `setting`
for llama.cpp's choice of a case; `run` for every run; `ratio` for every case with the median, least and
largest of both and of their ratio round by round, and Lynx's part of the bound that it measured."""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys

# name: (options of lynx bench engine, its line, program of llama.cpp, its options, its figure)
def decode(depth):
    return (["--prefill", "1", "--depth", str(depth)], {"kind": "decode", "depth": depth},
            "llama-bench", ["-p", "0", "-n", "32", "-d", str(depth), "-r", "1", "-o", "jsonl"], "avg_ts")


def prefill(tokens):
    return (["--prefill", str(tokens)], {"kind": "prefill", "tokens": tokens},
            "llama-bench", ["-p", str(tokens), "-n", "0", "-r", "1", "-o", "jsonl"], "avg_ts")


def batch(sequences):
    return (["--prefill", "1", "--depth", "16", "--batch", str(sequences)],
            {"kind": "decode", "batch": sequences}, "llama-batched-bench",
            ["-c", str(64 * sequences), "-npp", "16", "-ntg", "32", "-npl", str(sequences),
             "--output-format", "jsonl"], "speed_tg")


CASES = {f"decode:{d}": decode(d) for d in (0, 2048, 7600)}
CASES |= {f"prefill:{n}": prefill(n) for n in (512, 4096)}
CASES |= {"batch:8": batch(8)}

SETTINGS = [["-fa", "0"], ["-fa", "0", "-ctk", "q8_0"], ["-fa", "1"],
            ["-fa", "1", "-ctk", "q8_0", "-ctv", "q8_0"]]


def json_lines(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_lynx(args, case, model, threads):
    options, wanted = CASES[case][:2]
    lines = json_lines([args.lynx, "bench", "engine", "--model", model, "--threads", str(threads),
                        "--repeats", str(args.repeats), *options])
    line = next(x for x in lines if all(x.get(k) == v for k, v in wanted.items()))
    return {"tok_per_s": line["tok_per_s"], "of_bound": line["of_bound"]}


def run_llama(args, case, model, threads, setting):
    program, options, figure = CASES[case][2:]
    if program == "llama-batched-bench":  # its flag takes words
        setting = [{"0": "off", "1": "on"}.get(word, word) for word in setting]
    command = [os.path.join(args.llama, program), "-m", model, "-t", str(threads), *options, *setting]
    return {"tok_per_s": json_lines(command)[-1][figure]}


def say(**line):
    print(json.dumps(line), flush=True)


def choose_settings(args):
    best = {}
    for case in args.cases:
        speeds = [run_llama(args, case, args.models[0], max(args.threads), s)["tok_per_s"]
                  for s in SETTINGS]
        best[case] = SETTINGS[speeds.index(max(speeds))]
        say(type="setting", case=case, best=" ".join(best[case]),
            tok_per_s={" ".join(s): round(v, 2) for s, v in zip(SETTINGS, speeds)})
    return best


def figures(values):
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3),
            "max": round(max(values), 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--lynx", default="build/release/lynx")
    parser.add_argument("--llama", required=True, help="directory of llama.cpp's programs")
    parser.add_argument("--threads", default="1,2", type=lambda s: [int(x) for x in s.split(",")])
    parser.add_argument("--cases", default=list(CASES), type=lambda s: s.split(","),
                        help=f"of {','.join(CASES)}")
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--repeats", default=3, type=int, help="of a case in one run of Lynx")
    args = parser.parse_args()
    if unknown := [case for case in args.cases if case not in CASES]:
        parser.error(f"unknown case {unknown[0]}; there are {', '.join(CASES)}")

    settings = choose_settings(args)
    runs = {}
    for round_ in range(args.rounds):
        for model, threads, case in itertools.product(args.models, args.threads, args.cases):
            for program in ("lynx", "llama") if round_ % 2 == 0 else ("llama", "lynx"):
                if program == "lynx":
                    result = run_lynx(args, case, model, threads)
                else:
                    result = run_llama(args, case, model, threads, settings[case])
                runs.setdefault((model, threads, case), {}).setdefault(program, []).append(result)
                say(type="run", round=round_, model=os.path.basename(model), threads=threads,
                    case=case, program=program, **result)
    for (model, threads, case), result in runs.items():
        lynx, llama = ([run["tok_per_s"] for run in result[p]] for p in ("lynx", "llama"))
        say(type="ratio", model=os.path.basename(model), threads=threads, case=case,
            lynx=figures(lynx), llama=figures(llama), llama_setting=" ".join(settings[case]),
            ratio=figures([a / b for a, b in zip(lynx, llama)]),
            of_bound=figures([run["of_bound"] for run in result["lynx"]]))


if __name__ == "__main__":
    main()
