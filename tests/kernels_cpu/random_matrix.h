// SPDX-License-Identifier: Apache-2.0
// Random inputs of matrix products: weights in every file format, activations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/quantize.h"
#include "lynx/backend.h"

namespace lynx::cpu {

inline constexpr WeightType kAllTypes[] = {
    WeightType::kF32,  WeightType::kF16,    WeightType::kBf16,  WeightType::kQ4_0,
    WeightType::kQ4_1, WeightType::kQ5_0,   WeightType::kQ5_1,  WeightType::kQ8_0,
    WeightType::kQ4_K, WeightType::kQ5_K,   WeightType::kQ6_K,  WeightType::kQ2_K,
    WeightType::kQ3_K, WeightType::kIQ4_NL, WeightType::kIQ4_XS};

// Where the binary16 scales of a block stand.
inline std::vector<int> ScaleOffsets(WeightType type) {
  switch (type) {
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K:
      return {0, 2};
    case WeightType::kQ6_K:
      return {208};
    case WeightType::kQ2_K:
      return {80, 82};
    case WeightType::kQ3_K:
      return {108};
    default:
      return {0};
  }
}

// A matrix of n rows of k elements in a file's format: random codes, scales of either sign around
// 2^-6.
class Matrix {
 public:
  Matrix(WeightType type, int64_t n, int64_t k, uint32_t seed) : rng_(seed) {
    const BlockShape format = WeightBlock(type);
    const size_t row_bytes = size_t(k) / format.elements * format.bytes;
    bytes_.resize(n * row_bytes);
    view_ = {.type = type, .n = n, .k = k, .data = bytes_.data(), .row_bytes = row_bytes};
    for (size_t at = 0; at < bytes_.size(); at += format.bytes) Fill(type, &bytes_[at]);
  }

  const WeightView& view() const { return view_; }
  WeightView ordered(const std::vector<int32_t>& order) const {
    WeightView view = view_;
    view.row_order = order.data();
    return view;
  }
  std::vector<float> Row(int64_t i) const {
    std::vector<float> row(view_.k);
    DequantizeRow(view_.type, view_.data + i * view_.row_bytes, view_.k, row.data());
    return row;
  }

 private:
  void Fill(WeightType type, std::byte* block) {
    const float value = std::normal_distribution<float>(0, 0.05f)(rng_);
    switch (type) {
      case WeightType::kF32:
        std::memcpy(block, &value, 4);
        return;
      case WeightType::kF16:
        PutHalf(block, value);
        return;
      case WeightType::kBf16: {
        const Bf16 bits = ToBf16(value);
        std::memcpy(block, &bits, 2);
        return;
      }
      default:
        break;
    }
    for (int i = 0; i < WeightBlock(type).bytes; ++i) block[i] = std::byte(rng_() & 255);
    for (int offset : ScaleOffsets(type)) {
      PutHalf(block + offset, std::uniform_real_distribution<float>(-0.02f, 0.02f)(rng_));
    }
  }
  static void PutHalf(std::byte* p, float value) {
    const uint16_t bits = FloatToHalf(value);
    std::memcpy(p, &bits, 2);
  }

  std::mt19937 rng_;
  std::vector<std::byte> bytes_;
  WeightView view_;
};

inline std::vector<float> RandomRows(int rows, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(rows * k);
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(rng) * (i % 97 == 0 ? 30.0f : 1.0f);
  return x;
}

// Bits, because -0 == 0 and NaN != NaN.
inline std::vector<uint32_t> Bits(const std::vector<float>& v) {
  std::vector<uint32_t> bits(v.size());
  std::memcpy(bits.data(), v.data(), v.size() * 4);
  return bits;
}

}  // namespace lynx::cpu
