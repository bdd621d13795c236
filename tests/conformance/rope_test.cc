// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rope.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/rope.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;
using cpu::RandomRows;

class RopeTest : public DeviceTest {};

TEST_F(RopeTest, EveryShapeHasTheCpusBits) {
  constexpr int kMaxPosition = 40;
  for (int head_dim : {2, 6, 16, 64, 96, 128, 256}) {
    const int half = head_dim / 2;
    const std::vector<float> cos = RandomRows(kMaxPosition, half, 1),
                             sin = RandomRows(kMaxPosition, half, 2);
    DeviceArray<float> device_cos(cos), device_sin(sin);
    for (int num_heads : {1, 3, 9}) {
      const std::vector<int32_t> positions = {39, 0, 7, 8, 8, 21, 1};
      const int rows = static_cast<int>(positions.size());
      std::vector<float> want = RandomRows(rows, int64_t{num_heads} * head_dim, 3);
      DeviceArray<float> x(want);
      DeviceArray<int32_t> device_positions(positions);
      Rope(stream(), x.data(), rows, num_heads, head_dim, device_positions.data(),
           {.cos = device_cos.data(), .sin = device_sin.data()});

      cpu::ScopedFlushToZero flush;
      for (int i = 0; i < rows * num_heads; ++i) {
        const int entry = positions[i / num_heads] * half;
        cpu::RopeHeadRef(&want[i * head_dim], &cos[entry], &sin[entry], head_dim);
      }
      ASSERT_EQ(Bits(x.Download()), Bits(want)) << num_heads << " heads of " << head_dim;
    }
  }
}

}  // namespace
}  // namespace lynx::cuda
