// SPDX-License-Identifier: Apache-2.0
// Whether this process may use AMX, found out before the first kernel does; and whether products in
// BF16 (AMX, VDPBF16PS) are those of the scalar kernel.
#pragma once

#include "kernels/cpu/gemm_kernels.h"

namespace lynx::cpu {

// Asks Linux for the tile registers (for every thread of the process, and what it forks, until an
// exec), then multiplies a few tiles. Null when the results are right, otherwise what is wrong.
// CPUID and XCR0 must have said before that the instructions exist. Call it before threads start:
// Linux refuses when one of them has a signal stack that could not hold the registers.
const char* AmxFault();

// Whether the kernels give the bits of the scalar ones: products and sums around the smallest
// normal number, subnormal inputs, overflow, infinities, every kind of row tile. NaNs are equal.
bool EqualScalar(const Bf16Kernels& kernels);

}  // namespace lynx::cpu
