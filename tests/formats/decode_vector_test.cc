// SPDX-License-Identifier: Apache-2.0
#include "formats/decode_vector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "formats/weight_type.h"
#include "tests/half_value.h"

namespace lynx {
namespace {

TEST(DecodeVectorTest, EveryFiniteHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto value =
        DecodeFloats(WeightType::kF16, reinterpret_cast<const std::byte*>(&half), 1)[0];
    if ((half & 0x7c00) == 0x7c00) {
      EXPECT_FALSE(std::isfinite(value));
    } else {
      ASSERT_EQ(value, HalfValue(half)) << bits;
      ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << bits;
    }
  }
}

TEST(DecodeVectorTest, RowOrderIsUndone) {
  const float stored[] = {0, 1, 2, 3};
  TensorInfo tensor;
  tensor.shape = {4};
  tensor.data = reinterpret_cast<const std::byte*>(stored);
  tensor.bytes = sizeof(stored);
  tensor.row_order = {0, 2, 1, 3};
  EXPECT_THAT(DecodeVector(tensor), testing::ElementsAre(0, 2, 1, 3));
}

// Only scales can be non-finite in a block format: every byte of them, no byte beside them.
TEST(CheckFiniteTest, FindsTheScalesOfEveryFormat) {
  struct Format {
    WeightType type;
    size_t scale_begin, scale_bytes;
  };
  for (const Format& f : {Format{WeightType::kQ4_0, 0, 2}, Format{WeightType::kQ4_1, 0, 4},
                          Format{WeightType::kQ5_0, 0, 2}, Format{WeightType::kQ5_1, 0, 4},
                          Format{WeightType::kQ8_0, 0, 2}, Format{WeightType::kQ4_K, 0, 4},
                          Format{WeightType::kQ5_K, 0, 4}, Format{WeightType::kQ6_K, 208, 2},
                          Format{WeightType::kQ2_K, 80, 4}, Format{WeightType::kQ3_K, 108, 2},
                          Format{WeightType::kIQ4_NL, 0, 2}, Format{WeightType::kIQ4_XS, 0, 2}}) {
    const auto block_bytes = static_cast<size_t>(WeightBlock(f.type).bytes);
    for (size_t at = 0; at < block_bytes; at += 2) {
      std::vector<std::byte> data(2 * block_bytes);  // the second block is the one at fault
      data[block_bytes + at + 1] = std::byte{0x7c};  // +Inf, were it a half
      TensorInfo tensor;
      tensor.type = f.type;
      tensor.data = data.data();
      tensor.bytes = data.size();
      const bool in_scales = at >= f.scale_begin && at < f.scale_begin + f.scale_bytes;
      EXPECT_EQ(CheckFinite(tensor).ok(), !in_scales) << WeightTypeName(f.type) << " byte " << at;
    }
  }
}

TEST(CheckFiniteTest, NamesFileAndTensor) {
  const float values[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  TensorInfo tensor;
  tensor.data = reinterpret_cast<const std::byte*>(values);
  tensor.bytes = sizeof(values);
  tensor.file = "m.gguf";
  tensor.label = "blk.0.x";
  EXPECT_EQ(CheckFinite(tensor).message(),
            "m.gguf: tensor blk.0.x: holds a NaN or an infinity, want finite numbers");
}

}  // namespace
}  // namespace lynx
