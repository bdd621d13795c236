#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every CUDA kernel to its budget.

Reads what ptxas said of each kernel when it was compiled (*.cu.o.log under the build directory) and
the budgets in the sources:

    // budget: NameKernel registers 64 shared 8192 threads 256

for all instantiations of a kernel; NameKernel<128> is for one. "shared" is the most that a block
may use, static and dynamic together. Fails on spills, on more registers or static shared memory than
the budget, on a kernel without a budget, on a budget without a kernel, on an architecture that is
missing, and on machine code with a trap (cubin.py). --table prints one row per kernel and
architecture for docs/performance.md, with the occupancy that the budget's shared memory leaves.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import cubin

# Per multiprocessor: registers, threads, blocks, shared memory (CUDA C++ Programming Guide,
# "Compute Capabilities").
LIMITS = {
    "sm_80": (65536, 2048, 32, 164 << 10),
    "sm_90": (65536, 2048, 32, 228 << 10),
    "sm_100": (65536, 2048, 32, 228 << 10),
}
SHARED_RESERVED = 1 << 10  # per block, by the driver
REGISTER_UNIT = 256  # per warp
WARP = 32


@dataclass
class Usage:
    kernel: str      # demangled, template arguments included
    arch: str
    registers: int = 0
    shared: int = 0  # static
    spills: int = 0

    @property
    def base(self):
        return re.sub(r"<.*", "", self.kernel)


@dataclass
class Budget:
    registers: int
    shared: int
    where: str
    threads: int = 0


def demangle(names):
    if not names:
        return {}
    out = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True)
    result = {}
    for mangled, name in zip(names, out.stdout.splitlines()):
        name = re.sub(r"\((?![^<>]*>).*$", "", name)      # the parameter list
        name = re.sub(r"^void ", "", name)
        result[mangled] = name.replace("lynx::cuda::", "").replace("lynx::", "")
    return result


def read_usages(build):
    usages = []
    for path in sorted(glob.glob(os.path.join(build, "**", "*.cu.o.log"), recursive=True)):
        current = None
        with open(path) as f:
            for line in f:
                if m := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
                    current = Usage(m[1], m[2])
                    usages.append(current)
                elif current is None:
                    continue
                elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
                    current.spills += int(m[1]) + int(m[2])
                elif m := re.search(r"Used (\d+) registers", line):
                    current.registers = int(m[1])
                    if m := re.search(r"(\d+) bytes smem", line):
                        current.shared = int(m[1])
                    current = None
    names = demangle(sorted({u.kernel for u in usages}))
    for u in usages:
        u.kernel = names[u.kernel]
    return usages


def read_traps(build):
    """Kernels with a trap, by demangled name, and how many were looked at."""
    trapped, count = set(), 0
    for path in sorted(glob.glob(os.path.join(build, "**", "*.cu.o"), recursive=True)):
        with open(path, "rb") as f:
            for name, code in cubin.kernels(f.read()):
                count += 1
                if cubin.has_trap(code):
                    trapped.add(name)
    return sorted(demangle(sorted(trapped)).values()), count


def read_budgets(sources):
    budgets = {}
    line_form = re.compile(r"^// budget: (\w+(?:<\w+>)?) registers (\d+) shared (\d+)(?: threads (\d+))?$")
    for path in sorted(glob.glob(os.path.join(sources, "*.cuh"))):
        with open(path) as f:
            for number, line in enumerate(f, 1):
                if m := line_form.match(line.rstrip()):
                    budgets[m[1]] = Budget(int(m[2]), int(m[3]), f"{os.path.basename(path)}:{number}",
                                           int(m[4] or 0))
                elif line.startswith("// budget:"):
                    sys.exit(f"error: {path}:{number}: not '// budget: NAME registers N shared N [threads N]'")
    return budgets


def budget_of(usage, budgets):
    return budgets.get(usage.kernel) or budgets.get(usage.base)


def problems(usages, budgets, arches):
    if not usages:
        yield "no kernel was compiled in this build directory"
    for u in usages:
        b = budget_of(u, budgets)
        where = f"{u.kernel} ({u.arch})"
        if b is None:
            yield f"{where}: has no budget"
            continue
        if u.spills:
            yield f"{where}: spills {u.spills} bytes"
        if u.registers > b.registers:
            yield f"{where}: {u.registers} registers, budget {b.registers} ({b.where})"
        if u.shared > b.shared:
            yield f"{where}: {u.shared} bytes of shared memory, budget {b.shared} ({b.where})"
    for name, b in budgets.items():
        seen = {u.arch for u in usages if name in (u.kernel, u.base)}
        for arch in sorted(set(arches) - seen):
            yield f"{name} ({b.where}): not compiled for {arch}"


def occupancy(u, b):
    """Resident threads over the most possible, by registers and shared memory."""
    registers, threads, blocks, shared = LIMITS[u.arch]
    if not b.threads:
        return None
    warps = b.threads // WARP
    per_warp = -(-u.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    resident = min(blocks, threads // b.threads, registers // (per_warp * warps),
                   shared // (b.shared + SHARED_RESERVED))
    return resident * b.threads / threads


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="build directory")
    parser.add_argument("--sources", default=os.path.join(os.path.dirname(__file__), "../kernels/cuda"))
    parser.add_argument("--arches", default=",".join(LIMITS), help="architectures that must be there")
    parser.add_argument("--table", action="store_true", help="print a Markdown table")
    args = parser.parse_args()

    usages = read_usages(args.build)
    budgets = read_budgets(args.sources)
    if args.table:
        print("| kernel | arch | registers | shared memory | threads | occupancy |")
        print("|---|---|---|---|---|---|")
        for u in sorted(usages, key=lambda u: (u.kernel, u.arch)):
            b = budget_of(u, budgets)
            if b is None or u.arch not in LIMITS:
                continue
            share = occupancy(u, b)
            print(f"| `{u.kernel}` | {u.arch} | {u.registers} | {b.shared} | {b.threads or ''} | "
                  f"{'' if share is None else f'{share:.0%}'} |")
    trapped, num_codes = read_traps(args.build)
    failures = list(problems(usages, budgets, args.arches.split(",")))
    failures += [f"{kernel}: its machine code has a trap" for kernel in trapped]
    if num_codes < len(usages):
        failures.append(f"machine code of {num_codes} kernels was found, want {len(usages)}")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    print(f"{len(usages)} kernels on {len({u.arch for u in usages})} architectures, "
          f"{len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
