#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompts of real text for `lynx bench serve --dataset-name prompts`, one JSON object a line.

Cuts the text of bench/prompts into pieces at equal distances and asks something about each:

    tools/text_prompts.py --number 8 --characters 30000 --output-tokens 128 > prompts.jsonl

30,000 characters are about 7,500 tokens of SmolLM2.
"""
import argparse
import json
import pathlib
import sys

QUESTIONS = [
    "Summarize the text above.",
    "List the most important points of the text above.",
    "What is the text above about? Answer in detail.",
    "Quote the sentences of the text above that matter most.",
]


def prompts(text, number, characters, output_tokens):
    last = max(0, len(text) - characters)
    for i in range(number):
        begin = i * last // max(1, number - 1)
        question = QUESTIONS[i % len(QUESTIONS)]
        yield {"prompt": f"{text[begin:begin + characters]}\n\n{question}", "output_tokens": output_tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=8, help="how many prompts")
    parser.add_argument("--characters", type=int, default=30000, help="of text in each")
    parser.add_argument("--output-tokens", type=int, default=128, help="max_tokens of each answer")
    args = parser.parse_args()
    if min(args.number, args.characters, args.output_tokens) < 1:
        parser.error("the numbers must be at least 1")
    directory = pathlib.Path(__file__).resolve().parent.parent / "bench" / "prompts"
    text = "".join(path.read_text() for path in sorted(directory.glob("*.txt")))
    if args.characters > len(text):
        parser.error(f"--characters: there are only {len(text)}")
    for prompt in prompts(text, args.number, args.characters, args.output_tokens):
        json.dump(prompt, sys.stdout)
        print()


if __name__ == "__main__":
    main()
