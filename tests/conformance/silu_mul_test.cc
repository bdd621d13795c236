// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/silu_mul.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/silu_mul.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;
using cpu::RandomRows;

class SiluMulTest : public DeviceTest {
 protected:
  void Check(const std::vector<float>& gate, const std::vector<float>& up) {
    const auto n = static_cast<int64_t>(gate.size());
    std::vector<float> want(gate.size());
    {
      cpu::ScopedFlushToZero flush;
      cpu::SiluMulRangeRef(gate.data(), up.data(), n, want.data());
    }
    DeviceArray<float> y(gate), device_up(up);
    SiluMul(stream(), y.data(), device_up.data(), n, y.data());
    ASSERT_EQ(Bits(y.Download()), Bits(want)) << n << " elements";
  }
};

TEST_F(SiluMulTest, EveryTailHasTheCpusBits) {
  for (int n : {1, 31, 32, 255, 256, 257, 1500}) Check(RandomRows(1, n, 1), RandomRows(1, n, 2));
}

TEST_F(SiluMulTest, ExtremesHaveTheCpusBits) {
  std::vector<float> gate = {
      0.0f, -0.0f, 1e-40f, 1e-30f, 1e30f, -1e30f, std::numeric_limits<float>::infinity()};
  for (int i = -200; i <= 200; ++i) gate.push_back(0.53f * static_cast<float>(i));
  Check(gate, std::vector<float>(gate.size(), 1.5f));
}

}  // namespace
}  // namespace lynx::cuda
