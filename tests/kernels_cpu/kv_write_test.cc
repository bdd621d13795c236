// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv_write.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "tests/kernels_cpu/paged_kv.h"
#include "tests/kernels_cpu/supported_targets.h"

namespace lynx::cpu {
namespace {

KvLayout Layout(KvDtype dtype, int head_dim) {
  return {.num_layers = 2, .num_kv_heads = 3, .head_dim = head_dim, .dtype = dtype};
}

std::vector<std::byte> Bytes(const PagedKv& kv) {
  const KvPoolView& view = kv.view();
  return {view.base, view.base + view.layout.block_bytes() * view.num_blocks};
}

// Numbers that a cache cannot hold, and those that round at an edge.
std::vector<float> FloatsWithExtremes(size_t n, uint32_t seed) {
  std::vector<float> x = RandomFloats(n, seed, 100.0f);
  const float inf = std::numeric_limits<float>::infinity();
  const float extremes[] = {inf,
                            -inf,
                            std::numeric_limits<float>::quiet_NaN(),
                            -std::bit_cast<float>(0x7f800001u),
                            std::numeric_limits<float>::max(),
                            -0x1.fefffep127f,
                            -0.0f,
                            1e-41f,
                            0x1.018p0f,
                            0x1.028p0f};
  for (size_t i = 0; 7 * i < n; ++i) x[7 * i] = extremes[i % std::size(extremes)];
  return x;
}

// Writes random numbers as rows of these groups into layer 1 of a fresh pool of 8 blocks.
struct WrittenPool {
  struct How {
    int num_threads = 1;
    Target target = Target::kAuto;
    bool with_extremes = false;
  };
  WrittenPool(const KvLayout& layout, std::vector<RowGroup> groups, const How& how)
      : kv(layout, 8) {
    int num_rows = 0;
    for (RowGroup& group : groups) {
      group.row_begin = num_rows;
      num_rows += group.num_rows;
    }
    const size_t n = size_t(num_rows) * layout.num_kv_heads * layout.head_dim;
    k = how.with_extremes ? FloatsWithExtremes(n, 1) : RandomFloats(n, 1, 100.0f);
    v = how.with_extremes ? FloatsWithExtremes(n, 2) : RandomFloats(n, 2, 100.0f);
    CpuBackend::Create({.num_threads = how.num_threads, .target = how.target})
        ->KvWrite({.k = k.data(), .v = v.data(), .layer = 1, .pool = kv.view(), .groups = groups});
  }
  PagedKv kv;
  std::vector<float> k, v;
};

class KvWrite : public testing::TestWithParam<std::tuple<KvDtype, int>> {
 protected:
  KvLayout layout() const { return Layout(std::get<0>(GetParam()), std::get<1>(GetParam())); }

  // What the reference stores of the same numbers.
  PagedKv Wanted(const WrittenPool& written, const RowGroup& group) const {
    PagedKv want(layout(), 8);
    const int head_dim = layout().head_dim;
    for (int i = 0; i < group.num_rows * 3; ++i) {
      const int at = group.position + i / 3, head = i % 3;
      const auto write = [&](auto element) {
        using T = decltype(element);
        const auto tile = [&](KvKind kind) {
          const BlockId block = group.block_table[at / kBlockSize];
          return reinterpret_cast<T*>(want.view().tile(block, 1, kind, head));
        };
        KvWriteTokenRef(&written.k[i * head_dim], &written.v[i * head_dim], head_dim,
                        at % kBlockSize, tile(KvKind::kKey), tile(KvKind::kValue));
      };
      layout().dtype == KvDtype::kBf16 ? write(Bf16()) : write(0.0f);
    }
    return want;
  }
};
INSTANTIATE_TEST_SUITE_P(All, KvWrite,
                         testing::Combine(testing::Values(KvDtype::kBf16, KvDtype::kF32),
                                          testing::Values(8, 16, 24, 64, 80, 128)));

TEST_P(KvWrite, StoresEveryTokenAtItsSlotAndNothingElse) {
  const BlockId table[] = {5, 2, 7};
  for (const auto& [position, num_rows] :
       {std::pair{0, 1}, {0, 64}, {63, 1}, {63, 2}, {10, 31}, {1, 150}, {127, 65}, {32, 96}}) {
    const RowGroup group = {.num_rows = num_rows, .position = position, .block_table = table};
    std::optional<PagedKv> want;
    const auto check = [&](Target target, int num_threads) {
      const WrittenPool written(
          layout(), {group}, {.num_threads = num_threads, .target = target, .with_extremes = true});
      if (!want) want = Wanted(written, group);
      ASSERT_TRUE(Bytes(written.kv) == Bytes(*want))
          << TargetName(target) << ", " << num_threads << " threads, rows " << position << " + "
          << num_rows;
    };
    for (Target target : SupportedTargets()) check(target, 1);
    check(Target::kAuto, 2);
  }
}

TEST_P(KvWrite, TilesAreChannelsByTokensAndTokensByChannels) {
  const BlockId table[] = {3};
  const WrittenPool written(layout(), {{.num_rows = 1, .position = 17, .block_table = table}}, {});
  const bool bf16 = layout().dtype == KvDtype::kBf16;
  const int head_dim = layout().head_dim;
  for (int head = 0; head < 3; ++head) {
    for (int c = 0; c < head_dim; ++c) {
      const float k = written.k[head * head_dim + c], v = written.v[head * head_dim + c];
      EXPECT_EQ(written.kv.At(3, 1, KvKind::kKey, head, c * 64 + 17),
                bf16 ? ToFloat(ToBf16(k)) : k);
      EXPECT_EQ(written.kv.At(3, 1, KvKind::kValue, head, 17 * head_dim + c),
                bf16 ? ToFloat(ToBf16(v)) : v);
    }
  }
}

TEST(KvWriteTest, GroupsOfSeveralSequences) {
  const KvLayout layout = Layout(KvDtype::kBf16, 16);
  const BlockId a[] = {1, 4}, b[] = {6};
  const WrittenPool both(layout,
                         {{.num_rows = 3, .position = 62, .block_table = a},
                          {},
                          {.num_rows = 1, .position = 9, .block_table = b}},
                         {.num_threads = 2});
  const auto key = [&](int row) { return ToFloat(ToBf16(both.k[row * 3 * 16])); };
  EXPECT_EQ(both.kv.At(1, 1, KvKind::kKey, 0, 62), key(0));
  EXPECT_EQ(both.kv.At(1, 1, KvKind::kKey, 0, 63), key(1));
  EXPECT_EQ(both.kv.At(4, 1, KvKind::kKey, 0, 0), key(2));
  EXPECT_EQ(both.kv.At(6, 1, KvKind::kKey, 0, 9), key(3));
}

TEST(KvWriteTest, RoundsToNearestEvenAndStoresFiniteNumbersOnly) {
  const float inf = std::numeric_limits<float>::infinity();
  const float max = 3.3895314e38f;  // of BF16
  const float cases[][2] = {{1.00390625f, 1.0f},    {1.01171875f, 1.015625f},
                            {-1.00390625f, -1.0f},  {3.39e38f, 3.3895314e38f},
                            {3.4028235e38f, max},   {-inf, -max},
                            {1e-40f, 9.18355e-41f}, {-0.0f, -0.0f}};
  for (const auto& [x, want] : cases) {
    Bf16 key[kBlockSize], value[kBlockSize];
    KvWriteTokenRef(&x, &x, 1, 5, key, value);
    EXPECT_EQ(ToFloat(key[5]), want);
    EXPECT_EQ(ToFloat(value[5]), want);
    EXPECT_EQ(std::signbit(ToFloat(key[5])), std::signbit(want));
  }
  const float nan = std::bit_cast<float>(0x7f800001u);
  Bf16 key[kBlockSize], value[kBlockSize];
  KvWriteTokenRef(&nan, &nan, 1, 0, key, value);
  EXPECT_EQ(ToFloat(key[0]), 0.0f);
  float float_key[kBlockSize], float_value[kBlockSize];
  KvWriteTokenRef(&nan, &inf, 1, 0, float_key, float_value);
  EXPECT_EQ(float_key[0], 0.0f);
  EXPECT_EQ(float_value[0], std::numeric_limits<float>::max());
}

}  // namespace
}  // namespace lynx::cpu
