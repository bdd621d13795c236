// SPDX-License-Identifier: Apache-2.0
#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_backend.h"

namespace lynx {
namespace {

constexpr int kHeadDim = 64;
constexpr int kHalf = kHeadDim / 2;

TEST(RopeTableTest, AnglesAndGrowth) {
  const auto backend = cpu::CpuBackend::Create({});
  const auto tables = RopeTables::Create(*backend, {.theta = 10000.0}, kHeadDim, 32768);
  ASSERT_TRUE(tables.ok()) << tables.status();
  const RopeTable small = (*tables)->Covering(1);
  EXPECT_EQ(small.cos[0], 1.0f);
  EXPECT_EQ(small.sin[0], 0.0f);
  const RopeTable large = (*tables)->Covering(20000);
  for (int position : {0, 1, 4095, 4096, 19999}) {
    for (int i : {0, 1, kHalf - 1}) {
      const double angle = position * std::pow(10000.0, -2.0 * i / kHeadDim);
      EXPECT_EQ(large.cos[position * kHalf + i], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(large.sin[position * kHalf + i], static_cast<float>(std::sin(angle)));
    }
  }
}

TEST(RopeTableTest, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  const RopeConfig plain = {.theta = 500000.0};
  RopeConfig llama3 = plain;
  llama3.scaling = RopeScaling::kLlama3;
  llama3.factor = 8;
  llama3.low_freq_factor = 1;
  llama3.high_freq_factor = 4;
  llama3.original_max_position = 8192;
  const auto base = ComputeRopeFrequencies(plain, kHeadDim).inverse;
  const auto scaled = ComputeRopeFrequencies(llama3, kHeadDim).inverse;
  EXPECT_EQ(scaled.front(), base.front());
  EXPECT_DOUBLE_EQ(scaled.back(), base.back() / 8);
  RopeConfig divided = plain;  // how GGUF says the same
  for (int i = 0; i < kHalf; ++i) {
    EXPECT_LE(scaled[i], base[i]);
    EXPECT_GE(scaled[i], base[i] / 8);
    divided.freq_divisors.push_back(static_cast<float>(base[i] / scaled[i]));
  }
  const auto from_divisors = ComputeRopeFrequencies(divided, kHeadDim).inverse;
  for (int i = 0; i < kHalf; ++i) EXPECT_NEAR(from_divisors[i] / scaled[i], 1, 1e-7);
}

TEST(RopeTableTest, YarnInterpolatesBetweenItsCorrectionDimensions) {
  RopeConfig yarn = {.theta = 10000.0, .scaling = RopeScaling::kYarn, .factor = 4};
  yarn.original_max_position = 4096;
  const auto base = ComputeRopeFrequencies({.theta = 10000.0}, kHeadDim).inverse;
  const RopeFrequencies scaled = ComputeRopeFrequencies(yarn, kHeadDim);
  // d(r) = 64 ln(4096 / 2πr) / (2 ln 10000): d(32) = 10.47, d(1) = 22.51.
  EXPECT_DOUBLE_EQ(scaled.inverse[10], base[10]);
  EXPECT_LT(scaled.inverse[11], base[11]);
  EXPECT_GT(scaled.inverse[22], base[22] / 4);
  EXPECT_DOUBLE_EQ(scaled.inverse[23], base[23] / 4);
  EXPECT_DOUBLE_EQ(scaled.attention_factor, 0.1 * std::log(4.0) + 1);
}

}  // namespace
}  // namespace lynx
