// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/conformance/attention_case.h"

namespace lynx::cuda {
namespace {

using cpu::SameBits;

class AttentionTest : public DeviceTest {
 protected:
  std::vector<float> Run(const AttentionSequence& sequence, const std::vector<RowGroup>& groups,
                         AttentionPlanOptions options = {}) {
    DeviceArray<std::byte> pool(sequence.PoolBytes());
    return Run(sequence.shape(), sequence.pool(), pool, sequence.q(), groups, options);
  }
  std::vector<float> Run(const AttentionCase& c, const KvPoolView& host_pool,
                         DeviceArray<std::byte>& pool, const std::vector<float>& q,
                         const std::vector<RowGroup>& groups, AttentionPlanOptions options) {
    options.wide = options.wide && HasWideAttention(c.head_dim);
    PlannedAttention planned(c, groups, options);
    DeviceArray<float> device_q(q), out(q.size());
    Attention(
        stream(),
        {.q = device_q.data(),
         .out = out.data(),
         .num_heads = c.num_heads,
         .layer = 1,
         .scale = c.scale(),
         .sliding_window = c.window,
         .pool = {.base = pool.data(), .layout = c.layout(), .num_blocks = host_pool.num_blocks},
         .work = planned.work(),
         .scratch = planned.scratch()});
    return out.Download();
  }
};

// Decode rows, verification rows and chunks; partial blocks, whole blocks, several segments.
std::vector<AttentionCase> Lengths(const AttentionCase& shape) {
  std::vector<AttentionCase> cases;
  for (const auto& [num_tokens, num_rows] :
       {std::pair{1, 1}, {63, 1}, {64, 2}, {65, 1}, {130, 5}, {200, 40}, {600, 1}, {1100, 2}}) {
    cases.push_back(shape);
    cases.back().num_tokens = num_tokens;
    cases.back().num_rows = num_rows;
  }
  return cases;
}

TEST_F(AttentionTest, EveryShapeIsAsExactAsItsFormats) {
  for (const AttentionCase& shape :
       std::vector<AttentionCase>{{.head_dim = 16, .num_heads = 4, .num_kv_heads = 2},
                                  {.head_dim = 32, .num_heads = 2, .num_kv_heads = 2},
                                  {.head_dim = 64, .num_heads = 3, .num_kv_heads = 1},
                                  {.head_dim = 64, .num_heads = 8, .num_kv_heads = 1},
                                  {.head_dim = 96, .num_heads = 4, .num_kv_heads = 1},
                                  {.head_dim = 128, .num_heads = 4, .num_kv_heads = 1},
                                  {.head_dim = 256, .num_heads = 2, .num_kv_heads = 1}}) {
    for (const AttentionCase& c : Lengths(shape)) {
      const AttentionSequence sequence(c);
      ExpectClose(sequence, sequence.Reference());
      ExpectClose(sequence, Run(sequence, sequence.Groups()));
    }
  }
}

TEST_F(AttentionTest, SlidingWindows) {
  for (int window : {1, 16, 64, 100, 520}) {
    for (const auto& [num_tokens, num_rows] : {std::pair{15, 3}, {610, 1}, {610, 30}}) {
      const AttentionSequence sequence({.head_dim = 32,
                                        .num_heads = 2,
                                        .window = window,
                                        .num_tokens = num_tokens,
                                        .num_rows = num_rows});
      ExpectClose(sequence, Run(sequence, sequence.Groups()));
    }
  }
}

TEST_F(AttentionTest, BlocksOutsideTheWindowAreNotRead) {
  AttentionSequence sequence({.window = 100, .num_tokens = 900, .num_rows = 4});
  const std::vector<float> want = Run(sequence, sequence.Groups());
  // The first row is at 896 and sees 797 onwards.
  for (int b = 0; b < 797 / kBlockSize; ++b) sequence.table()[b] = -1;
  EXPECT_TRUE(SameBits(Run(sequence, sequence.Groups()), want));
}

// 64 rows, of which some see one block less than others of their tile, in chunks of every size.
TEST_F(AttentionTest, RowsDoNotDependOnTheirGroup) {
  for (int window : {0, 70}) {
    const AttentionSequence sequence(
        {.head_dim = 32, .window = window, .num_tokens = 542, .num_rows = 64});
    const std::vector<float> want = Run(sequence, sequence.Groups());
    for (const std::vector<int>& sizes : std::vector<std::vector<int>>{
             std::vector<int>(64, 1), {7, 7, 7, 7, 7, 7, 7, 7, 8}, {16, 16, 16, 16}, {1, 63}}) {
      for (const bool split : {false, true}) {
        EXPECT_TRUE(SameBits(Run(sequence, sequence.Groups(sizes), {.split = split}), want))
            << sizes.size() << " groups, split " << split << ", window " << window;
      }
    }
  }
}

TEST_F(AttentionTest, EveryScheduleHasTheSameBits) {
  for (const AttentionCase& c : std::vector<AttentionCase>{
           {.num_tokens = 1100, .num_rows = 5},
           {.head_dim = 16, .num_heads = 4, .num_kv_heads = 2, .num_tokens = 540, .num_rows = 33},
           {.head_dim = 96, .num_heads = 2, .num_tokens = 1030, .num_rows = 20},
           {.head_dim = 128, .num_heads = 2, .num_tokens = 1030, .num_rows = 20},
           {.head_dim = 256, .num_heads = 2, .num_tokens = 530, .num_rows = 20}}) {
    const AttentionSequence sequence(c);
    const std::vector<float> want = Run(sequence, sequence.Groups());
    for (const bool wide : {false, true}) {
      const AttentionPlanOptions options = {.wide = wide, .split = false};
      EXPECT_TRUE(SameBits(Run(sequence, sequence.Groups(), options), want)) << c;
    }
    EXPECT_TRUE(SameBits(Run(sequence, sequence.Groups(), {.wide = false}), want)) << c;
  }
}

TEST_F(AttentionTest, StaleSlotsNeverContribute) {
  AttentionSequence sequence({.num_tokens = 545, .num_rows = 10});
  const std::vector<float> want = Run(sequence, sequence.Groups());
  sequence.ChangeGarbage();
  EXPECT_TRUE(SameBits(Run(sequence, sequence.Groups()), want));
}

TEST_F(AttentionTest, RowsDoNotDependOnTheBatch) {
  const AttentionCase c = {.num_tokens = 600, .num_rows = 3};
  const AttentionSequence sequence(c);
  const std::vector<float> alone = Run(sequence, sequence.Groups());

  // The same rows behind a chunk and before a decode row of the same sequence's earlier positions.
  std::vector<float> q = cpu::RandomFloats(size_t{34 + 3} * c.row_size(), 5);
  std::copy(sequence.q().begin(), sequence.q().end(), q.begin() + 33 * c.row_size());
  std::vector<RowGroup> groups = {{.num_rows = 33, .position = 100},
                                  {.num_rows = 0},
                                  {.row_begin = 33, .num_rows = 3, .position = 597},
                                  {.row_begin = 36, .num_rows = 1, .position = 64}};
  for (RowGroup& group : groups) group.block_table = sequence.Groups()[0].block_table;
  DeviceArray<std::byte> pool(sequence.PoolBytes());
  const std::vector<float> all = Run(c, sequence.pool(), pool, q, groups, {});
  const auto begin = all.begin() + 33 * c.row_size();
  EXPECT_TRUE(SameBits({begin, begin + alone.size()}, alone));
}

// ---- the plan, without a device -----------------------------------------------------------------

TEST(AttentionPlan, CoversEveryPairOnceWithinItsBounds) {
  const std::vector<BlockId> table(64);
  for (const auto& [num_heads, num_kv_heads, window] :
       {std::tuple{9, 3, 0}, {32, 1, 0}, {4, 4, 700}, {8, 2, 0}}) {
    std::vector<RowGroup> groups;
    int rows = 0;
    for (const auto& [n, position] : {std::pair{1, 2000},
                                      {5, 511},
                                      {0, 0},
                                      {200, 0},
                                      {40, 3000},
                                      {64, 1500},
                                      {1, 0},
                                      {10, 4000}}) {
      groups.push_back(
          {.row_begin = rows, .num_rows = n, .position = position, .block_table = table.data()});
      rows += n;
    }
    AttentionPlan plan;
    plan.Make(groups, num_heads, num_kv_heads, window);
    const int heads_per_kv_head = num_heads / num_kv_heads;
    std::vector<std::vector<std::vector<int>>> visits;  // [group][pair][segment]
    for (const AttentionGroup& group : plan.groups()) {
      visits.emplace_back(group.num_rows * heads_per_kv_head, std::vector<int>(8));
    }
    const auto visit = [&](std::span<const AttentionUnit> units, int tile_pairs) {
      for (const AttentionUnit& unit : units) {
        auto& pairs = visits[unit.group];
        const int end = std::min<int>(unit.pair_begin + tile_pairs, pairs.size());
        for (int pair = unit.pair_begin; pair < end; ++pair) {
          for (int s = unit.segment_begin; s < unit.segment_end; ++s) ++pairs[pair][s];
        }
      }
    };
    visit(plan.narrow(), kNarrowPairs);
    visit(plan.wide(), kWidePairs);
    for (size_t g = 0; g < visits.size(); ++g) {
      for (size_t pair = 0; pair < visits[g].size(); ++pair) {
        const int position = plan.groups()[g].position + static_cast<int>(pair) / heads_per_kv_head;
        const int first = FirstVisible(position, window) / cpu::kSegmentTokens;
        for (int s = 0; s < 8; ++s) {
          const bool seen = s >= first && s <= position / cpu::kSegmentTokens;
          EXPECT_TRUE(visits[g][pair][s] == 1 || (!seen && visits[g][pair][s] == 0));
        }
      }
    }
    const AttentionLimits limits = {.max_rows = rows,
                                    .max_groups = static_cast<int>(groups.size()),
                                    .max_position = 4096,
                                    .num_heads = num_heads,
                                    .num_kv_heads = num_kv_heads,
                                    .head_dim = 64};
    EXPECT_LE(plan.bytes(), AttentionWorkBytes(limits));
    EXPECT_LE(plan.num_slots() * num_kv_heads * (64 + 2) * sizeof(float),
              AttentionScratchBytes(limits));
    EXPECT_FALSE(plan.merges().empty());
  }
}

}  // namespace
}  // namespace lynx::cuda
