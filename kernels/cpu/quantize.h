// SPDX-License-Identifier: Apache-2.0
// Weights into Q8_0, for the block formats that have no kernel of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lynx/backend.h"

namespace lynx::cpu {

// Rounds to nearest even; overflow becomes Inf, NaN stays NaN. Whatever FTZ and DAZ say.
uint16_t FloatToHalf(float value);

// One block of Q8_0: 32 values become scale * codes[i], with |codes[i]| <= 127. The scale is
// max |x| / 127 rounded to binary16, and the codes belong to the rounded scale, so that the error
// of a value is at most half a scale (plus what the largest values lose to the scale's rounding).
void QuantizeQ8_0(const float* x, uint16_t* scale, int8_t* codes);

// One block of Q5_0 as Q8_0, without any error.
void WidenQ5_0(const std::byte* block, uint16_t* scale, int8_t* codes);
// The same of IQ4_NL.
void WidenIQ4_NL(const std::byte* block, uint16_t* scale, int8_t* codes);

}  // namespace lynx::cpu
