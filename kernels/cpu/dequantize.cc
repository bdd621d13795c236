// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dequantize.h"

#include <cstring>

#include "kernels/common/iq4_value.h"

namespace lynx::cpu {
namespace {

uint8_t Byte(const std::byte* p) { return std::to_integer<uint8_t>(*p); }

template <typename T>
T Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

float LoadHalf(const std::byte* p) { return HalfToFloat(Load<uint16_t>(p)); }

// Blocks of 32 keep element j in the low nibble of byte j, element j + 16 in the high one.
// Loops of 16 become vectors only where the compiler may not unroll them first.
void DecodeQ4_0(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const std::byte* q = block + 2;
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) out[j] = d * float((Byte(q + j) & 15) - 8);
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) out[j + 16] = d * float((Byte(q + j) >> 4) - 8);
}

void DecodeQ4_1(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const std::byte* q = block + 4;
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) out[j] = d * float(Byte(q + j) & 15) + m;
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) out[j + 16] = d * float(Byte(q + j) >> 4) + m;
}

// The fifth bit of element j is bit j of a 32-bit word.
int FifthBit(uint32_t high, int j) { return int((high >> j) & 1) << 4; }

void DecodeQ5_0(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const uint32_t high = Load<uint32_t>(block + 2);
  const std::byte* q = block + 6;
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) {
    out[j] = d * float(((Byte(q + j) & 15) | FifthBit(high, j)) - 16);
  }
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) {
    out[j + 16] = d * float(((Byte(q + j) >> 4) | FifthBit(high, j + 16)) - 16);
  }
}

void DecodeQ5_1(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const uint32_t high = Load<uint32_t>(block + 4);
  const std::byte* q = block + 8;
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) {
    out[j] = d * float((Byte(q + j) & 15) | FifthBit(high, j)) + m;
  }
#pragma GCC unroll 1
  for (int j = 0; j < 16; ++j) {
    out[j + 16] = d * float((Byte(q + j) >> 4) | FifthBit(high, j + 16)) + m;
  }
}

void DecodeQ8_0(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  for (int j = 0; j < 32; ++j) out[j] = d * float(int8_t(Byte(block + 2 + j)));
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each in the low bits of
// bytes 0..7, the rest as nibbles of bytes 8..11 with their top bits in the top bits of bytes 0..7.
struct ScaleMin {
  int scale;
  int min;
};
ScaleMin UnpackScaleMin(const std::byte* scales, int i) {
  if (i < 4) return {Byte(scales + i) & 63, Byte(scales + i + 4) & 63};
  const int nibbles = Byte(scales + i + 4);
  return {(nibbles & 15) | ((Byte(scales + i - 4) >> 6) << 4),
          (nibbles >> 4) | ((Byte(scales + i) >> 6) << 4)};
}

// d, dmin, scales[12], then 32 bytes for every 64 elements: low nibbles first.
void DecodeQ4_K(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const std::byte* quants = block + 16;
  for (int i = 0; i < 8; ++i, out += 32) {
    const ScaleMin sm = UnpackScaleMin(block + 4, i);
    const float scale = d * float(sm.scale);
    const float min = dmin * float(sm.min);
    const std::byte* q = quants + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) out[j] = scale * float((Byte(q + j) >> shift) & 15) - min;
  }
}

// As Q4_K, with bit i of high[j] as the fifth bit of element j of the i-th group of 32.
void DecodeQ5_K(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  const std::byte* high = block + 16;
  const std::byte* quants = block + 48;
  for (int i = 0; i < 8; ++i, out += 32) {
    const ScaleMin sm = UnpackScaleMin(block + 4, i);
    const float scale = d * float(sm.scale);
    const float min = dmin * float(sm.min);
    const std::byte* q = quants + i / 2 * 32;
    const int shift = i % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int fifth = ((Byte(high + j) >> i) & 1) << 4;
      out[j] = scale * float(((Byte(q + j) >> shift) & 15) + fifth) - min;
    }
  }
}

// low[128], high[64], int8 scales[16], d. Halves of 128 elements; in each, four groups of 32 share
// the bytes: their low nibbles, then their high nibbles; two more bits each from one high byte. A
// scale covers 16 elements.
void DecodeQ6_K(const std::byte* block, float* out) {
  const float d = LoadHalf(block + 208);
  for (int i = 0; i < 16; ++i, out += 16) {
    const int half = i / 8, group = i / 2 % 4;
    const std::byte* low = block + half * 64 + group % 2 * 32 + i % 2 * 16;
    const std::byte* high = block + 128 + half * 32 + i % 2 * 16;
    const int low_shift = group / 2 * 4, high_shift = group * 2;
    const float scale = d * float(int8_t(Byte(block + 192 + i)));
#pragma GCC unroll 1
    for (int j = 0; j < 16; ++j) {
      const int q =
          ((Byte(low + j) >> low_shift) & 15) | (((Byte(high + j) >> high_shift) & 3) << 4);
      out[j] = scale * float(q - 32);
    }
  }
}

// scales[16], codes[64], d, dmin. A byte of scales has the scale of 16 elements in its low nibble,
// their minimum in the high one. Halves of 128 elements; in each, four groups of 32 share the
// bytes of codes, two bits for each.
void DecodeQ2_K(const std::byte* block, float* out) {
  const float d = LoadHalf(block + 80);
  const float dmin = LoadHalf(block + 82);
  for (int i = 0; i < 16; ++i, out += 16) {
    const int scale_min = Byte(block + i);
    const float scale = d * float(scale_min & 15);
    const float min = dmin * float(scale_min >> 4);
    const std::byte* q = block + 16 + i / 8 * 32 + i % 2 * 16;
    const int shift = i / 2 % 4 * 2;
#pragma GCC unroll 1
    for (int j = 0; j < 16; ++j) out[j] = scale * float((Byte(q + j) >> shift) & 3) - min;
  }
}

// Sixteen 6-bit scales in 12 bytes, 32 more than what they mean: four bits as nibbles of bytes
// 0..7, the low nibbles first, and two bits in bytes 8..11, four scales to a byte.
int UnpackScaleQ3_K(const std::byte* scales, int i) {
  const int low = (Byte(scales + i % 8) >> (i / 8 * 4)) & 15;
  const int high = (Byte(scales + 8 + i % 4) >> (i / 4 * 2)) & 3;
  return (low | (high << 4)) - 32;
}

// high[32], codes[64], scales[12], d. Codes as in Q2_K, with bit i of high[j] as the third bit of
// element j of the i-th group of 32. A scale covers 16 elements.
void DecodeQ3_K(const std::byte* block, float* out) {
  const float d = LoadHalf(block + 108);
  for (int i = 0; i < 16; ++i, out += 16) {
    const float scale = d * float(UnpackScaleQ3_K(block + 96, i));
    const std::byte* high = block + i % 2 * 16;
    const std::byte* low = block + 32 + i / 8 * 32 + i % 2 * 16;
    const int high_shift = i / 2, low_shift = i / 2 % 4 * 2;
#pragma GCC unroll 1
    for (int j = 0; j < 16; ++j) {
      const int q =
          ((Byte(low + j) >> low_shift) & 3) | (((Byte(high + j) >> high_shift) & 1) << 2);
      out[j] = scale * float(q - 4);
    }
  }
}

// Codes as in Q4_0, each for a value of a table.
void DecodeIQ4Codes(const std::byte* q, float scale, float* out) {
  float values[16];
  for (int i = 0; i < 16; ++i) values[i] = scale * float(kIq4Values[i]);
  for (int j = 0; j < 16; ++j) {
    out[j] = values[Byte(q + j) & 15];
    out[j + 16] = values[Byte(q + j) >> 4];
  }
}

void DecodeIQ4_NL(const std::byte* block, float* out) {
  DecodeIQ4Codes(block + 2, LoadHalf(block), out);
}

// d, high, low[4], then 16 bytes of codes for every 32 elements. The scale of group i is 32 less
// than six bits: a nibble of low[i / 2] and bits 2 i and 2 i + 1 of the 16-bit word high.
void DecodeIQ4_XS(const std::byte* block, float* out) {
  const float d = LoadHalf(block);
  const int high_bits = Load<uint16_t>(block + 2);
  for (int i = 0; i < 8; ++i) {
    const int low = (Byte(block + 4 + i / 2) >> (i % 2 * 4)) & 15;
    const int high = (high_bits >> (2 * i)) & 3;
    DecodeIQ4Codes(block + 8 + 16 * i, d * float((low | (high << 4)) - 32), out + 32 * i);
  }
}

template <void (*kDecode)(const std::byte*, float*)>
void DecodeBlocks(BlockShape block, const std::byte* row, int64_t k, float* out) {
  for (int64_t i = 0; i < k; i += block.elements, row += block.bytes) kDecode(row, out + i);
}

}  // namespace

void DequantizeRow(WeightType type, const std::byte* row, int64_t k, float* out) {
  const BlockShape block = WeightBlock(type);
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out, row, size_t(k) * sizeof(float));
      return;
    case WeightType::kF16:
      for (int64_t i = 0; i < k; ++i) out[i] = LoadHalf(row + 2 * i);
      return;
    case WeightType::kBf16:
      for (int64_t i = 0; i < k; ++i) out[i] = ToFloat(Bf16{Load<uint16_t>(row + 2 * i)});
      return;
    case WeightType::kQ4_0:
      return DecodeBlocks<DecodeQ4_0>(block, row, k, out);
    case WeightType::kQ4_1:
      return DecodeBlocks<DecodeQ4_1>(block, row, k, out);
    case WeightType::kQ5_0:
      return DecodeBlocks<DecodeQ5_0>(block, row, k, out);
    case WeightType::kQ5_1:
      return DecodeBlocks<DecodeQ5_1>(block, row, k, out);
    case WeightType::kQ8_0:
      return DecodeBlocks<DecodeQ8_0>(block, row, k, out);
    case WeightType::kQ4_K:
      return DecodeBlocks<DecodeQ4_K>(block, row, k, out);
    case WeightType::kQ5_K:
      return DecodeBlocks<DecodeQ5_K>(block, row, k, out);
    case WeightType::kQ6_K:
      return DecodeBlocks<DecodeQ6_K>(block, row, k, out);
    case WeightType::kQ2_K:
      return DecodeBlocks<DecodeQ2_K>(block, row, k, out);
    case WeightType::kQ3_K:
      return DecodeBlocks<DecodeQ3_K>(block, row, k, out);
    case WeightType::kIQ4_NL:
      return DecodeBlocks<DecodeIQ4_NL>(block, row, k, out);
    case WeightType::kIQ4_XS:
      return DecodeBlocks<DecodeIQ4_XS>(block, row, k, out);
  }
}

}  // namespace lynx::cpu
