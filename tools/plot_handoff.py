#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One page of plots from the JSON lines of `lynx bench handoff`.

usage: plot_handoff.py FILE.jsonl [...] --output docs/results/handoff.svg

A row of plots for each (link, round trip, prompt length, prefill busy or idle): the time to the k-th
token after token 1, provisional (drafts count from when they were drafted, if accepted) and verified;
the bytes of each stage; and the share of answers that equal the BF16 answer. Needs matplotlib.
"""

import argparse
import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

STAGES = ("anchor", "residual", "exact")
STAGE_COLORS = ("#3465a4", "#a3c1e0", "#d9d9d9")
READINGS = (("t_provisional_s", "provisional"), ("t_verified_s", "verified"))


def read_cells(paths):
    """{place: [cell]} in the order of the files; a later cell of the same kind replaces an earlier."""
    places = {}
    for path in paths:
        with open(path) as f:
            for line in f:
                cell = json.loads(line)
                if cell.get("kind") != "handoff":
                    continue
                place = (cell["link"], cell["rtt_s"], cell["prompt_tokens"], prefill(cell))
                places.setdefault(place, {})[name(cell)] = cell
    return {place: list(cells.values()) for place, cells in places.items()}


def name(cell):
    if cell["codec"] != "planes":
        return cell["codec"]
    anchor = "" if cell["anchor"] == "default" else " " + cell["anchor"]
    return f"planes{anchor}, {cell['verify']}"


def prefill(cell):
    return "cached" if cell["prefill_cached"] else "busy" if cell["prefill_busy"] else "idle"


def title(place):
    link, rtt_s, prompt_tokens, prefill_side = place
    rtt = "" if rtt_s is None else f", {rtt_s * 1e3:g} ms"
    return f"{link}{rtt}\n{prompt_tokens} tokens\nprefill {prefill_side}"


def plot_times(axes, cells, field, colors):
    for cell in cells:
        times = cell[field]
        ks = [int(k) for k in times]
        axes.plot(ks, list(times.values()), marker="o", markersize=3,
                  color=colors[name(cell)])
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 8, 32, 64], ["1", "2", "8", "32", "64"])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def plot_bytes(axes, cells):
    names = [name(cell) for cell in cells]
    left = [0.0] * len(cells)
    for stage, color in zip(STAGES, STAGE_COLORS):
        width = [cell["bytes"][stage] / 1e6 for cell in cells]
        axes.barh(names, width, left=left, color=color, label=stage)
        left = [a + b for a, b in zip(left, width)]
    axes.invert_yaxis()


def plot_agreement(axes, cells, colors):
    names = [name(cell) for cell in cells]
    axes.barh(names, [cell["equal_to_bf16"] for cell in cells], color=[colors[n] for n in names])
    for i, cell in enumerate(cells):
        needles = cell["needles"]
        if needles["asked"]:
            axes.text(0.02, i, f"needles {needles['found']}/{needles['found_by_bf16']}", va="center",
                      fontsize=7)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_yticks([])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="JSON lines of lynx bench handoff")
    parser.add_argument("--output", default="docs/results/handoff.svg")
    arguments = parser.parse_args()
    places = read_cells(arguments.files)
    if not places:
        sys.exit("plot_handoff: no line of kind \"handoff\" in " + ", ".join(arguments.files))

    names = dict.fromkeys(name(cell) for cells in places.values() for cell in cells)
    colors = {n: f"C{i}" for i, n in enumerate(names)}
    figure, rows = plt.subplots(len(places), 4, figsize=(15, 2.4 * len(places)), squeeze=False,
                                layout="constrained")
    for row, (place, cells) in zip(rows, places.items()):
        for axes, (field, _) in zip(row, READINGS):
            plot_times(axes, cells, field, colors)
        plot_bytes(row[2], cells)
        plot_agreement(row[3], cells, colors)
        row[0].set_ylabel(title(place), rotation=0, ha="right", va="center")
    for axes, (_, reading) in zip(rows[0], READINGS):
        axes.set_title(f"seconds from token 1 to the k-th\ntoken after it, {reading}", fontsize=9)
    rows[0][2].set_title("MB, by stage", fontsize=9)
    rows[0][3].set_title("share of answers equal to BF16's", fontsize=9)
    rows[0][2].legend(fontsize=7)
    lines = [plt.Line2D([], [], color=color, marker="o", label=n) for n, color in colors.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines), fontsize=9)
    for axes in rows[-1][:2]:
        axes.set_xlabel("k")
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
