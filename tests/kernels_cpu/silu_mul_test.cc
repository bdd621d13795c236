// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/common/math_ref.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/float_mode.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {
namespace {

std::vector<float> Gated(Target target, int num_threads, const std::vector<float>& gate,
                         const std::vector<float>& up) {
  std::vector<float> y(gate.size());
  CpuBackend::Create({.num_threads = num_threads, .target = target})
      ->SiluMul(gate.data(), up.data(), gate.size(), y.data());
  return y;
}

TEST(SiluMul, TargetsGiveTheBitsOfTheReference) {
  ScopedFlushToZero flush_to_zero;
  for (int n : {1, 15, 16, 17, 31, 33, 63, 65, 1536}) {
    const auto gate = RandomFloats(n, n, 8.0f), up = RandomFloats(n, n + 1);
    std::vector<float> want(n);
    SiluMulRangeRef(gate.data(), up.data(), n, want.data());
    for (Target target : SupportedTargets()) {
      EXPECT_TRUE(SameBits(Gated(target, 1, gate, up), want)) << TargetName(target) << ' ' << n;
    }
  }
}

TEST(SiluMul, IsAsExactAsFloat32) {
  std::vector<float> gate;
  for (float x = -80.0f; x < 80.0f; x += 0.0371f) gate.push_back(x);
  const std::vector<float> up(gate.size(), 1.5f);
  const auto got = Gated(Target::kAuto, 1, gate, up);
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = gate[i], want = x / (1.0 + std::exp(-x)) * 1.5;
    // exp is good to 2^-22; sum, quotient and product round once each.
    EXPECT_NEAR(got[i], want, std::abs(want) * std::ldexp(1.0, -21) + 1e-37) << x;
  }
}

TEST(SiluMul, EndsOfTheRange) {
  const float big = std::numeric_limits<float>::max();
  const std::vector<float> gate = {0.0f, -0.0f, 100.0f, -100.0f, 1e30f, -1e4f, big, 1e-40f};
  const auto got = Gated(Target::kAuto, 1, gate, std::vector<float>(gate.size(), 1.0f));
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[1], 0.0f);
  EXPECT_EQ(got[2], 100.0f);
  EXPECT_NEAR(got[3], 0.0f, 1e-35);
  EXPECT_EQ(got[4], 1e30f);
  EXPECT_NEAR(got[5], 0.0f, 1e-33);
  EXPECT_EQ(got[6], big);
  EXPECT_EQ(got[7], 0.0f) << "denormals are zero";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Gated(Target::kAuto, 1, {nan}, {1.0f})[0]));
}

TEST(SiluMul, DoesNotDependOnThreads) {
  const auto gate = RandomFloats(100'003, 1), up = RandomFloats(100'003, 2);
  const auto want = Gated(Target::kAuto, 1, gate, up);
  for (int num_threads : {2, 3, 5}) {
    EXPECT_TRUE(SameBits(Gated(Target::kAuto, num_threads, gate, up), want));
  }
}

TEST(Exp, IsGoodToTwoToTheMinus22) {
  for (float x = -87.0f; x < 88.0f; x += 0.00173f) {
    const double want = std::exp(double{x});
    ASSERT_NEAR(ExpRef(x), want, want * std::ldexp(1.0, -22)) << x;
  }
  EXPECT_EQ(ExpRef(0.0f), 1.0f);
  EXPECT_EQ(ExpRef(-0.0f), 1.0f);
  EXPECT_GT(ExpRef(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_TRUE(std::isfinite(ExpRef(std::numeric_limits<float>::infinity())));
  EXPECT_TRUE(std::isnan(ExpRef(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lynx::cpu
