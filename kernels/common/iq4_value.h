// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lynx {

// The multiples of the scale that the codes 0..15 of IQ4_NL and IQ4_XS stand for (kvalues_iq4nl in
// ggml/src/ggml-common.h).
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// kIq4Values[first] .. kIq4Values[first + 7], the first in the lowest byte.
constexpr uint64_t Iq4Word(int first) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | static_cast<uint8_t>(kIq4Values[first + i]);
  return word;
}

// kIq4Values[code] without a table in memory, for a GPU.
constexpr int Iq4Value(int code) {
  constexpr uint64_t kLow = Iq4Word(0), kHigh = Iq4Word(8);
  return static_cast<int8_t>((code < 8 ? kLow : kHigh) >> (code % 8 * 8));
}

}  // namespace lynx
