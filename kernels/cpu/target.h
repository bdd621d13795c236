// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this processor and its operating system offer.
#pragma once

#include <cstdint>

namespace lynx::cpu {

// kScalar is the meaning; the others give the same bits. kAvx2 includes FMA, F16C and BMI;
// kAvx512 is F + VL + DQ + BW; kAvx512Vnni adds VNNI, kAmx the BF16 tiles. kAuto is the best that
// is supported.
enum class Target : uint8_t { kAuto, kScalar, kAvx2, kAvx512, kAvx512Vnni, kAmx };

// True when code compiled for the target runs here: the instructions exist (CPUID) and the
// operating system saves their registers (XCR0). For kAmx Linux must also grant the process the
// tile registers, and they must multiply as the other targets do; the first question about it finds
// that out (amx_probe.h) and prints one line to stderr when it is not so. Thread-safe.
bool Supports(Target target);

// The best supported target; never kAuto.
Target Best();

// "auto", "scalar", "avx2", "avx512", "avx512vnni", "amx".
const char* TargetName(Target target);

}  // namespace lynx::cpu
