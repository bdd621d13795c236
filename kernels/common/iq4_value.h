// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lynx {

// Values first .. first + 7 of the table (kvalues_iq4nl in ggml/src/ggml-common.h), a byte each.
constexpr uint64_t Iq4Values(int first) {
  constexpr int8_t kValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= uint64_t{static_cast<uint8_t>(kValues[first + i])} << (8 * i);
  return word;
}

// The multiple of the scale that a code in 0..15 of IQ4_NL and IQ4_XS stands for. Shifts words, so
// that a GPU needs no table in memory.
constexpr int Iq4Value(int code) {
  constexpr uint64_t kLow = Iq4Values(0), kHigh = Iq4Values(8);
  return static_cast<int8_t>((code < 8 ? kLow : kHigh) >> (code % 8 * 8));
}

}  // namespace lynx
