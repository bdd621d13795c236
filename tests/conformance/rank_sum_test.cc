// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/rank_sum.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/float_mode.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::Bits;

class RankSumTest : public DeviceTest {};

// Values of all magnitudes, so that every order of adding gives other bits.
std::vector<float> Values(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    v = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 20));
  }
  return x;
}

TEST_F(RankSumTest, AddsInRankOrderWhicheverRankAdds) {
  for (int size : {2, 3, 8}) {
    for (int64_t n : {1, 31, 256, 257, 1000}) {
      const int64_t stride = (n + 31) / 32 * 32;
      std::vector<float> parts(size * stride);
      for (int r = 0; r < size; ++r) {
        const std::vector<float> x = Values(n, r);
        std::copy(x.begin(), x.end(), parts.begin() + r * stride);
      }
      std::vector<float> want(parts.begin(), parts.begin() + n);
      cpu::ScopedFlushToZero flush;
      for (int r = 1; r < size; ++r) {
        for (int64_t i = 0; i < n; ++i) want[i] += parts[r * stride + i];
      }
      for (int rank = 0; rank < size; ++rank) {
        // The adding rank's row of `parts` is never read.
        std::vector<float> received = parts;
        const auto own = received.begin() + rank * stride;
        DeviceArray<float> data(std::vector<float>(own, own + n));
        std::fill(own, own + stride, std::nanf(""));
        DeviceArray<float> others(received);
        RankSum(stream(), data.data(), others.data(), n, stride, rank, size);
        ASSERT_EQ(Bits(data.Download()), Bits(want))
            << n << " numbers, rank " << rank << " of " << size;
      }
    }
  }
}

}  // namespace
}  // namespace lynx::cuda
