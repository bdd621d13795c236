#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""incast_table.py FILE: the lines of `lynx bench incast` as the table of docs/performance.md.
Each cell is the median over the seeds, with the least and the most where there are several."""

import json
import statistics
import sys

COLUMNS = [
    ("anchor p50, ms", 1e3, 0, lambda d: d["anchor"]["measured_s"]["p50"]),
    ("anchor p99, ms", 1e3, 0, lambda d: d["anchor"]["measured_s"]["p99"]),
    ("p50 ÷ ideal", 1, 2, lambda d: d["anchor"]["over_ideal"]["p50"]),
    ("p99 ÷ ideal", 1, 2, lambda d: d["anchor"]["over_ideal"]["p99"]),
    ("target p99 ÷ ideal", 1, 2, lambda d: d["target"]["over_ideal"]["p99"]),
    ("link use, %", 100, 1, lambda d: d["link_use"]),
    ("control RTT p50, ms", 1e3, 2, lambda d: d["control_rtt_s"]["p50"]),
    ("control RTT p99, ms", 1e3, 1, lambda d: d["control_rtt_s"]["p99"]),
]


def cell(lines, scale, digits, value):
    values = [scale * value(line) for line in lines]
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f}–{max(values):.{digits}f})"
    return text


def main():
    runs = {}
    with open(sys.argv[1]) as f:
        for line in map(json.loads, f):
            runs.setdefault((line["policy"], line["senders"]), []).append(line)
    print("| policy | senders | requests |", " | ".join(c[0] for c in COLUMNS), "|")
    print("|---" * (3 + len(COLUMNS)) + "|")
    for (policy, senders), lines in runs.items():
        assert all(line["equal"] for line in lines), (policy, senders)
        requests = " + ".join(str(line["n"]) for line in lines)
        print(f"| {policy} | {senders} | {requests} |",
              " | ".join(cell(lines, *c[1:]) for c in COLUMNS), "|")


if __name__ == "__main__":
    main()
