// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {
namespace {

struct Table {
  Table(int max_position, int head_dim) {
    for (int p = 0; p < max_position; ++p) {
      for (int i = 0; i < head_dim / 2; ++i) {
        const double angle = p * std::pow(10000.0, -2.0 * i / head_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  RopeTable view() const { return {.cos = cos.data(), .sin = sin.data()}; }
  std::vector<float> cos, sin;
};

std::vector<float> Rotated(Target target, int num_threads, std::vector<float> x, int num_heads,
                           int head_dim, const std::vector<int32_t>& positions,
                           const Table& table) {
  CpuBackend::Create({.num_threads = num_threads, .target = target})
      ->Rope(x.data(), positions.size(), num_heads, head_dim, positions.data(), table.view());
  return x;
}

TEST(Rope, TargetsGiveTheBitsOfTheReference) {
  const std::vector<int32_t> positions = {0, 5, 6, 99, 3};
  for (int head_dim : {2, 8, 16, 24, 30, 32, 64, 80, 128, 256}) {
    const Table table(100, head_dim);
    const auto x = RandomFloats(positions.size() * 3 * head_dim, head_dim);
    auto want = x;
    for (size_t i = 0; i < positions.size() * 3; ++i) {
      const int entry = positions[i / 3] * head_dim / 2;
      RopeHeadRef(&want[i * head_dim], &table.cos[entry], &table.sin[entry], head_dim);
    }
    for (Target target : SupportedTargets()) {
      EXPECT_TRUE(SameBits(Rotated(target, 1, x, 3, head_dim, positions, table), want))
          << TargetName(target) << ' ' << head_dim;
    }
  }
}

TEST(Rope, RotatesHalfSplitPairs) {
  constexpr int kHeadDim = 64;
  const Table table(50, kHeadDim);
  const auto x = RandomFloats(kHeadDim, 3);
  const auto got = Rotated(Target::kAuto, 1, x, 1, kHeadDim, {37}, table);
  for (int i = 0; i < kHeadDim / 2; ++i) {
    const double a = x[i], b = x[i + kHeadDim / 2];
    const double c = table.cos[37 * kHeadDim / 2 + i], s = table.sin[37 * kHeadDim / 2 + i];
    const double bound = (std::abs(a) + std::abs(b)) * std::ldexp(1.0, -23);
    EXPECT_NEAR(got[i], a * c - b * s, bound);
    EXPECT_NEAR(got[i + kHeadDim / 2], b * c + a * s, bound);
  }
}

TEST(Rope, DoesNotDependOnThreads) {
  constexpr int kHeadDim = 64, kRows = 90;
  const Table table(kRows, kHeadDim);
  std::vector<int32_t> positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  const auto x = RandomFloats(kRows * 9 * kHeadDim, 5);
  const auto want = Rotated(Target::kAuto, 1, x, 9, kHeadDim, positions, table);
  for (int num_threads : {2, 3, 5}) {
    EXPECT_TRUE(
        SameBits(Rotated(Target::kAuto, num_threads, x, 9, kHeadDim, positions, table), want));
  }
}

}  // namespace
}  // namespace lynx::cpu
