// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kv_write.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/kv_write.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/random_matrix.h"

namespace lynx::cuda {
namespace {

using cpu::RandomRows;

constexpr int kNumBlocks = 3;

// Rows with the numbers that a cache cannot hold, and those that round at an edge.
std::vector<float> RowsWithExtremes(int rows, int64_t width, uint32_t seed) {
  std::vector<float> x = RandomRows(rows, width, seed);
  const float extremes[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            -0x1.fefffep127f,
                            -0.0f,
                            1e-41f,
                            0x1.018p0f};
  for (size_t i = 0; i < std::size(extremes) && 13 * i < x.size(); ++i) x[13 * i] = extremes[i];
  return x;
}

class KvWriteTest : public DeviceTest {
 protected:
  void Check(const KvLayout& layout, int layer, const std::vector<int32_t>& slots) {
    const int rows = static_cast<int>(slots.size());
    const int64_t width = int64_t{layout.num_kv_heads} * layout.head_dim;
    const std::vector<float> k = RowsWithExtremes(rows, width, 1),
                             v = RowsWithExtremes(rows, width, 2);
    std::vector<std::byte> want(kNumBlocks * layout.block_bytes(), std::byte{0x5a});
    DeviceArray<std::byte> pool(want);
    DeviceArray<float> device_k(k), device_v(v);
    DeviceArray<int32_t> device_slots(slots);
    KvWrite(stream(), {.k = device_k.data(),
                       .v = device_v.data(),
                       .slots = device_slots.data(),
                       .rows = rows,
                       .layer = layer,
                       .pool = {.base = pool.data(), .layout = layout, .num_blocks = kNumBlocks}});

    cpu::ScopedFlushToZero flush;
    const KvPoolView host{.base = want.data(), .layout = layout, .num_blocks = kNumBlocks};
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < layout.num_kv_heads; ++head) {
        const auto tile = [&](KvKind kind) {
          return reinterpret_cast<Bf16*>(host.tile(slots[row] / kBlockSize, layer, kind, head));
        };
        const int64_t at = row * width + head * layout.head_dim;
        cpu::KvWriteTokenRef(&k[at], &v[at], layout.head_dim, slots[row] % kBlockSize,
                             tile(KvKind::kKey), tile(KvKind::kValue));
      }
    }
    ASSERT_EQ(pool.Download(), want) << "head_dim " << layout.head_dim << ", " << rows << " rows";
  }
};

TEST_F(KvWriteTest, EveryShapeHasTheCpusBits) {
  std::vector<int32_t> slots(kNumBlocks * kBlockSize);
  std::iota(slots.begin(), slots.end(), 0);
  for (int head_dim : {6, 16, 64, 96, 128}) {
    const KvLayout layout{.num_layers = 2, .num_kv_heads = 2, .head_dim = head_dim};
    std::shuffle(slots.begin(), slots.end(), std::mt19937(head_dim));
    for (int rows : {1, 2, 31, 33, 70}) {
      Check(layout, rows % 2, std::vector<int32_t>(slots.begin(), slots.begin() + rows));
    }
  }
}

TEST_F(KvWriteTest, ConsecutivePositions) {
  std::vector<int32_t> slots(80);
  std::iota(slots.begin(), slots.end(), 2 * kBlockSize - 40);
  Check({.num_layers = 1, .num_kv_heads = 3, .head_dim = 32}, 0, slots);
}

}  // namespace
}  // namespace lynx::cuda
