// SPDX-License-Identifier: Apache-2.0
// Scalar decoders of weight-file rows to float32. These are the meaning of every WeightType: value
// by value and rounding by rounding those of ggml's block formats.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "lynx/backend.h"

namespace lynx::cpu {

// Elements and bytes of one block of a format; a row holds a whole number of blocks.
struct BlockFormat {
  int elements = 1;
  int bytes = 0;
};
BlockFormat BlockFormatOf(WeightType type);

// Decodes the first k elements of a row (k is a multiple of the format's block). A row that starts
// at element i of a longer one begins i / elements * bytes later. Rows need no alignment.
void DequantizeRow(WeightType type, const std::byte* row, int64_t k, float* out);

// IEEE binary16, exact; subnormals stay what they are whatever FTZ and DAZ say.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // Inf, NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  if (magnitude == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(magnitude) - 21;  // brings the leading bit to bit 10
  const uint32_t exponent = uint32_t(113 - shift) << 23;
  return std::bit_cast<float>(sign | (exponent + (((magnitude << shift) & 0x3ffu) << 13)));
}

}  // namespace lynx::cpu
