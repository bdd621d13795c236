// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rms_norm.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/rms_norm.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;
using cpu::RandomRows;

std::vector<float> Expected(const std::vector<float>& x, const std::vector<float>& weight,
                            int dim) {
  cpu::ScopedFlushToZero flush;
  std::vector<float> y(x.size());
  for (size_t at = 0; at < x.size(); at += dim) {
    cpu::RmsNormRowRef(&x[at], weight.data(), 1e-5f, dim, &y[at]);
  }
  return y;
}

class RmsNormTest : public DeviceTest {
 protected:
  std::vector<float> Run(const std::vector<float>& x, const std::vector<float>& weight, int dim) {
    DeviceArray<float> device_x(x), device_weight(weight), y(x.size());
    RmsNorm(stream(), device_x.data(), device_weight.data(), 1e-5f,
            static_cast<int64_t>(x.size()) / dim, dim, y.data());
    return y.Download();
  }
};

TEST_F(RmsNormTest, EveryTailHasTheCpusBits) {
  for (int dim : {1, 2, 15, 16, 17, 31, 33, 64, 96, 128, 255, 257, 576, 1030, 4096, 5000}) {
    for (int n : {1, 2, 3, 16, 17, 35}) {
      if (n * dim > 20000) continue;
      const std::vector<float> x = RandomRows(n, dim, dim), weight = RandomRows(1, dim, 1);
      ASSERT_EQ(Bits(Run(x, weight, dim)), Bits(Expected(x, weight, dim))) << n << " x " << dim;
    }
  }
}

TEST_F(RmsNormTest, ExtremesHaveTheCpusBits) {
  constexpr int kDim = 48;
  std::vector<float> x = RandomRows(6, kDim, 3);
  const float factors[] = {0.0f, 1e-40f, 1e-24f, 1e18f, 3e37f, -1.0f};
  for (size_t i = 0; i < x.size(); ++i) x[i] *= factors[i / kDim];
  const std::vector<float> weight = RandomRows(1, kDim, 4);
  EXPECT_EQ(Bits(Run(x, weight, kDim)), Bits(Expected(x, weight, kDim)));
}

TEST_F(RmsNormTest, InPlace) {
  constexpr int kDim = 100;
  const std::vector<float> x = RandomRows(45, kDim, 5), weight = RandomRows(1, kDim, 6);
  DeviceArray<float> y(x), device_weight(weight);
  RmsNorm(stream(), y.data(), device_weight.data(), 1e-5f, 45, kDim, y.data());
  EXPECT_EQ(Bits(y.Download()), Bits(Expected(x, weight, kDim)));
}

}  // namespace
}  // namespace lynx::cuda
