// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this processor and its operating system offer.
#pragma once

#include <cstdint>

namespace lynx::cpu {

// kScalar is the meaning; the others give the same bits. kAvx2 includes FMA, F16C and BMI;
// kAvx512 is F + VL + DQ + BW; kAvx512Vnni adds VNNI. kAuto is the best that is supported.
enum class Target : uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAvx512Vnni };

// True when code compiled for the target runs here: the instructions exist (CPUID) and the
// operating system saves their registers (XCR0).
bool Supports(Target target);

// The best supported target; never kAuto.
Target Best();

// "auto", "scalar", "avx2", "avx512", "avx512vnni".
const char* TargetName(Target target);

}  // namespace lynx::cpu
