// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dequantize.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/quantize.h"
#include "tests/half_value.h"
#include "tests/hex.h"
#include "tests/npy.h"

namespace lynx::cpu {
namespace {

const std::map<std::string, WeightType> kTypes = {
    {"F16", WeightType::kF16},       {"BF16", WeightType::kBf16},    {"Q4_0", WeightType::kQ4_0},
    {"Q4_1", WeightType::kQ4_1},     {"Q5_0", WeightType::kQ5_0},    {"Q5_1", WeightType::kQ5_1},
    {"Q8_0", WeightType::kQ8_0},     {"Q4_K", WeightType::kQ4_K},    {"Q5_K", WeightType::kQ5_K},
    {"Q6_K", WeightType::kQ6_K},     {"Q2_K", WeightType::kQ2_K},    {"Q3_K", WeightType::kQ3_K},
    {"IQ4_NL", WeightType::kIQ4_NL}, {"IQ4_XS", WeightType::kIQ4_XS}};

TEST(DequantizeTest, SmallVectors) {
  std::ifstream file(LYNX_SOURCE_DIR "/tests/kernels_cpu/data/dequantize.txt");
  ASSERT_TRUE(file.is_open());
  int num_blocks = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string type, raw, want;
    fields >> type >> raw >> want;
    std::vector<float> out(want.size() / 8);
    DequantizeRow(kTypes.at(type), FromHex(raw).data(), int64_t(out.size()), out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::stoul(want.substr(8 * i, 8), nullptr, 16))
          << type << ", block " << num_blocks << ", element " << i;
    }
    ++num_blocks;
  }
  EXPECT_EQ(num_blocks, 42);
}

TEST(DequantizeTest, ReferenceVectors) {
  const std::filesystem::path folder = LYNX_SHARED_DIR "/reference/gguf_quants";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  for (const auto& [name, type] : kTypes) {
    const auto raw = ReadNpy<uint8_t>(folder / (name + ".raw.u8.npy"));
    const auto want = ReadNpy(folder / (name + ".f32.npy"));
    const int64_t k = want.shape[1], row_bytes = raw.shape[1];
    std::vector<float> out(k);
    for (int64_t r = 0; r < want.shape[0]; ++r) {
      const auto row = std::as_bytes(std::span(raw.values)).subspan(r * row_bytes);
      DequantizeRow(type, row.data(), k, out.data());
      ASSERT_EQ(std::memcmp(out.data(), want.values.data() + r * k, k * sizeof(float)), 0)
          << name << ", row " << r;
    }
  }
}

TEST(DequantizeTest, F32IsCopied) {
  const float values[] = {1.5f, -0.0f, 1e-42f};
  float out[3];
  DequantizeRow(WeightType::kF32, reinterpret_cast<const std::byte*>(values), 3, out);
  EXPECT_EQ(std::memcmp(values, out, sizeof(out)), 0);
}

TEST(HalfTest, EveryHalfIsExactAndComesBack) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = HalfToFloat(uint16_t(h));
    if ((h & 0x7c00) == 0x7c00) {
      EXPECT_EQ(std::isnan(f), (h & 0x3ff) != 0);
      EXPECT_EQ(std::isinf(f), (h & 0x3ff) == 0);
      if (std::isnan(f)) continue;
    } else {
      ASSERT_EQ(double(f), HalfValue(uint16_t(h)));
    }
    ASSERT_EQ(FloatToHalf(f), h);
  }
}

// Between two neighbours the nearer one wins, in the middle the even one.
TEST(HalfTest, RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float low = HalfToFloat(uint16_t(h));
    const float high = h == 0x7bff ? 65536.0f : HalfToFloat(uint16_t(h + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(FloatToHalf(middle), h + (h & 1)) << h;
    ASSERT_EQ(FloatToHalf(std::nextafterf(middle, 0.0f)), h) << h;
    ASSERT_EQ(FloatToHalf(-std::nextafterf(middle, 1e9f)), 0x8000u | (h + 1)) << h;
  }
}

TEST(QuantizeTest, Q8_0IsOffByHalfAScale) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 1);
  for (float size : {1e-6f, 1e-3f, 1.0f, 1e3f}) {
    for (int round = 0; round < 200; ++round) {
      float x[32], max = 0;
      for (float& v : x) max = std::max(max, std::fabs(v = normal(rng) * size));
      uint16_t scale;
      int8_t codes[32];
      QuantizeQ8_0(x, &scale, codes);
      const double d = HalfToFloat(scale);
      // Half a scale, or what the scale's own rounding (2^-11, or 2^-25 for subnormals) cuts off.
      const double cut = 127 * std::max(std::ldexp(d, -11), std::ldexp(1.0, -25));
      for (int i = 0; i < 32; ++i) ASSERT_NEAR(d * codes[i], x[i], std::max(d / 2, cut) * 1.0001);
    }
  }
}

TEST(QuantizeTest, Q8_0RoundsToNearestEven) {
  float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, 0.49999997f, 3.4f};
  uint16_t scale;
  int8_t codes[32];
  QuantizeQ8_0(x, &scale, codes);
  EXPECT_EQ(HalfToFloat(scale), 1.0f);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(codes[i], std::nearbyint(x[i])) << x[i];
}

TEST(QuantizeTest, Q8_0KeepsZeroAndSurvivesExtremes) {
  float x[32] = {};
  uint16_t scale;
  int8_t codes[32];
  QuantizeQ8_0(x, &scale, codes);
  EXPECT_EQ(scale, 0);
  for (int8_t code : codes) EXPECT_EQ(code, 0);
  x[3] = 3e38f;
  QuantizeQ8_0(x, &scale, codes);
  EXPECT_EQ(HalfToFloat(scale), 65504.0f);
  EXPECT_EQ(codes[3], 127);
  EXPECT_EQ(codes[4], 0);
}

void ExpectExactWidening(WeightType type, void (*widen)(const std::byte*, uint16_t*, int8_t*)) {
  std::mt19937 rng(2);
  for (int round = 0; round < 100; ++round) {
    std::byte block[22];
    for (std::byte& b : block) b = std::byte(rng() & 255);
    block[1] &= std::byte(0x3f);  // a finite scale
    float want[32];
    DequantizeRow(type, block, 32, want);
    uint16_t scale;
    int8_t codes[32];
    widen(block, &scale, codes);
    for (int i = 0; i < 32; ++i) ASSERT_EQ(HalfToFloat(scale) * float(codes[i]), want[i]);
  }
}

TEST(QuantizeTest, WidensWithoutError) {
  ExpectExactWidening(WeightType::kQ5_0, WidenQ5_0);
  ExpectExactWidening(WeightType::kIQ4_NL, WidenIQ4_NL);
}

}  // namespace
}  // namespace lynx::cpu
