// SPDX-License-Identifier: Apache-2.0
// Attention on AMX tiles, emulated ones, against the scalar reference, bit for bit. On a processor
// with AMX attention_test.cc runs the real ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/tile_config.h"
#include "tests/kernels_cpu/attention_sequence.h"
#include "tests/kernels_cpu/emulated_tiles.h"

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_tiles-inl.h"

constexpr Bf16Kernels kEmulated = MakeTileKernels<EmulatedTiles>();

int num_products = 0;  // on tiles

// Every vector target packs the tiles.
class AttentionOnTiles : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!Supports(GetParam())) GTEST_SKIP() << "this processor lacks " << TargetName(GetParam());
  }

  std::vector<float> Run(const Sequence& sequence, const std::vector<int>& groups,
                         int num_threads = 1) {
    Bf16Kernels counted = kEmulated;
    num_products = 0;
    if (num_threads == 1) {
      counted.multiply = [](const GemmStep& step) {
        ++num_products;
        kEmulated.multiply(step);
      };
    }
    AttentionKernels kernels = SelectAttentionKernels(GetParam());
    kernels.amx = &counted;
    ThreadPool pool(num_threads);
    AttentionScratch scratch;
    const auto out = sequence.Run(
        [&](const AttentionParams& params) { RunAttention(pool, kernels, params, scratch); },
        groups);
    pool.Parallel([&](int thread) { EXPECT_FALSE(EmulatedTiles::in_use()) << thread; });
    return out;
  }
  static std::vector<float> Reference(const Sequence& sequence, int num_rows) {
    return sequence.Run(*CpuBackend::Create({.target = Target::kScalar}), num_rows);
  }
};
INSTANTIATE_TEST_SUITE_P(, AttentionOnTiles,
                         testing::Values(Target::kAvx2, Target::kAvx512, Target::kAvx512Bf16),
                         [](const auto& info) { return std::string(TargetName(info.param)); });

TEST_P(AttentionOnTiles, GivesTheBitsOfTheReference) {
  const Shape shapes[] = {{.head_dim = 32},
                          {.head_dim = 64},
                          {.head_dim = 96, .num_heads = 4, .num_kv_heads = 4},
                          {.head_dim = 128, .num_heads = 7, .num_kv_heads = 1},
                          {.head_dim = 256, .num_heads = 24, .num_kv_heads = 1},
                          {.head_dim = 64, .window = 100},
                          {.head_dim = 32, .window = 600}};
  for (const Shape& shape : shapes) {
    for (int num_tokens : {12, 64, 65, 530}) {
      PagedKv kv(Sequence::Layout(shape), 12);
      const Sequence sequence(shape, num_tokens, kv);
      EXPECT_TRUE(SameBits(Run(sequence, {11}), Reference(sequence, 11)))
          << shape << ", " << num_tokens << " tokens";
      EXPECT_GT(num_products, 0);
    }
  }
}

TEST_P(AttentionOnTiles, IsLeftToVectorsWhereTilesDoNotFit) {
  for (const Shape& shape : {Shape{.head_dim = 48}, Shape{.dtype = KvDtype::kF32}}) {
    PagedKv kv(Sequence::Layout(shape), 4);
    const Sequence sequence(shape, 100, kv);
    EXPECT_TRUE(SameBits(Run(sequence, {20}), Reference(sequence, 20)));
    EXPECT_EQ(num_products, 0);
  }
  PagedKv kv(Sequence::Layout({}), 4);
  const Sequence sequence({}, 100, kv);
  EXPECT_TRUE(SameBits(Run(sequence, {1, 1}), Reference(sequence, 2)));  // 3 pairs each
  EXPECT_EQ(num_products, 0);
}

TEST_P(AttentionOnTiles, RowsDoNotDependOnGroupsOrThreads) {
  PagedKv kv(Sequence::Layout({}), 20);
  const Sequence sequence({}, 1100, kv);
  const auto want = Reference(sequence, 30);
  for (int num_threads : {1, 2, 3}) {
    for (const std::vector<int>& groups :
         std::vector<std::vector<int>>{{30}, {1, 29}, {2, 3, 4, 21}}) {
      EXPECT_TRUE(SameBits(Run(sequence, groups, num_threads), want))
          << num_threads << " threads, " << groups.size() << " groups";
    }
  }
}

}  // namespace
}  // namespace lynx::cpu
