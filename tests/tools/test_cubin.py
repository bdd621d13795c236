# SPDX-License-Identifier: Apache-2.0
"""tools/cubin.py finds nvcc's silent traps."""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools"))
import cubin  # noqa: E402

NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
SOURCE = """
#include <algorithm>
inline constexpr int kLimit = 16;
constexpr int Clamped(int x) { return std::min(x, kLimit); }
__global__ void Trapped(int* x) { x[0] = Clamped(x[0]); }
__global__ void ByValue(int* x) { x[0] = std::min(x[0], int{kLimit}); }
"""
# sm_80: a load of a parameter, BPT.TRAP, a branch to itself; and the same without the trap.
TRAPPED = (0x00000A0000017A02, 0x000FE40000000F00, 0x000000040000795C, 0x000FEA0000300000,
           0xFFFFFFF000007947, 0x000FC0000383FFFF)
CLEAN = TRAPPED[:2] + TRAPPED[4:]


def nvcc_works():
    try:
        return subprocess.run([NVCC, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


class Traps(unittest.TestCase):
    def test_stored_code(self):
        for words, trap in ((TRAPPED, True), (CLEAN, False)):
            self.assertEqual(cubin.has_trap(struct.pack(f"<{len(words)}Q", *words)), trap)

    def test_host_objects_hold_no_kernels(self):
        with open("/proc/self/exe", "rb") as f:
            self.assertEqual(list(cubin.kernels(f.read())), [])

    @unittest.skipUnless(nvcc_works(), "no nvcc")
    def test_what_nvcc_makes_of_a_reference_to_a_host_constant(self):
        with tempfile.TemporaryDirectory() as directory:
            source, made = (os.path.join(directory, f"trap.{end}") for end in ("cu", "o"))
            with open(source, "w") as f:
                f.write(SOURCE)
            subprocess.run([NVCC, "-std=c++20", "--expt-relaxed-constexpr", "-arch=sm_80", "-c",
                            source, "-o", made], check=True)
            with open(made, "rb") as f:
                traps = {name: cubin.has_trap(code) for name, code in cubin.kernels(f.read())}
        self.assertEqual(traps, {"_Z7TrappedPi": True, "_Z7ByValuePi": False})


if __name__ == "__main__":
    unittest.main()
