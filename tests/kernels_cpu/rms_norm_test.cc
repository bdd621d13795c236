// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {
namespace {

constexpr int kDims[] = {1, 8, 15, 16, 17, 31, 32, 33, 64, 100, 576, 1536, 4097};
constexpr float kEps = 1e-5f;

std::vector<float> Normalize(Target target, int num_threads, const std::vector<float>& x,
                             const std::vector<float>& weight) {
  const int dim = static_cast<int>(weight.size());
  std::vector<float> y(x.size());
  CpuBackend::Create({.num_threads = num_threads, .target = target})
      ->RmsNorm(x.data(), weight.data(), kEps, x.size() / dim, dim, y.data());
  return y;
}

TEST(RmsNorm, TargetsGiveTheBitsOfTheReference) {
  for (int dim : kDims) {
    const auto x = RandomFloats(dim * 3, dim), weight = RandomFloats(dim, dim + 1);
    std::vector<float> want(x.size());
    for (int r = 0; r < 3; ++r) {
      RmsNormRowRef(&x[r * dim], weight.data(), kEps, dim, &want[r * dim]);
    }
    for (Target target : SupportedTargets()) {
      EXPECT_TRUE(SameBits(Normalize(target, 1, x, weight), want))
          << TargetName(target) << ' ' << dim;
    }
  }
}

TEST(RmsNorm, IsAsExactAsFloat32) {
  for (int dim : kDims) {
    const auto x = RandomFloats(dim, dim, 3.0f), weight = RandomFloats(dim, dim + 1);
    const auto got = Normalize(Target::kAuto, 1, x, weight);
    double sum = 0;
    for (float v : x) sum += double{v} * v;
    const double scale = 1.0 / std::sqrt(sum / dim + double{kEps});
    // Each of dim / 16 + 4 additions and 5 more operations rounds once; the root halves the sum's.
    const double bound = std::ldexp(dim / 32.0 + 7, -24);
    for (int i = 0; i < dim; ++i) {
      const double want = x[i] * scale * weight[i];
      EXPECT_NEAR(got[i], want, std::abs(want) * bound) << dim << ' ' << i;
    }
  }
}

TEST(RmsNorm, RowsDoNotDependOnThreadsOrCompany) {
  constexpr int kDim = 576, kRows = 100;
  const auto x = RandomFloats(kDim * kRows, 1), weight = RandomFloats(kDim, 2);
  const auto want = Normalize(Target::kAuto, 1, x, weight);
  for (int num_threads : {2, 3, 5}) {
    EXPECT_TRUE(SameBits(Normalize(Target::kAuto, num_threads, x, weight), want));
  }
  const std::vector<float> row(x.begin() + 41 * kDim, x.begin() + 42 * kDim);
  EXPECT_TRUE(SameBits(Normalize(Target::kAuto, 1, row, weight),
                       {want.begin() + 41 * kDim, want.begin() + 42 * kDim}));
}

TEST(RmsNorm, WorksInPlaceAndOnZeros) {
  const auto weight = RandomFloats(100, 1);
  auto x = RandomFloats(100, 2);
  const auto want = Normalize(Target::kAuto, 1, x, weight);
  CpuBackend::Create({})->RmsNorm(x.data(), weight.data(), kEps, 1, 100, x.data());
  EXPECT_TRUE(SameBits(x, want));
  EXPECT_EQ(Normalize(Target::kAuto, 1, std::vector<float>(100), weight)[7], 0.0f);
}

}  // namespace
}  // namespace lynx::cpu
