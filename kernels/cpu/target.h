// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this processor and its operating system offer.
#pragma once

#include "lynx/cpu_target.h"

namespace lynx::cpu {

// True when code compiled for the target runs here: the instructions exist (CPUID) and the
// operating system saves their registers (XCR0). For kAvx512Bf16 and kAmx the products must also be
// those of the other targets, and for kAmx Linux must also grant the process the
// tile registers, and they must multiply as the other targets do; the first question about it finds
// that out (amx_probe.h) and prints one line to stderr when it is not so. Thread-safe.
bool Supports(Target target);

// The best supported target; never kAuto.
Target Best();

}  // namespace lynx::cpu
