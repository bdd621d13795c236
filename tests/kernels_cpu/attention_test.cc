// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include "tests/kernels_cpu/attention_sequence.h"

namespace lynx::cpu {
namespace {

std::unique_ptr<CpuBackend> MakeBackend(Target target, int num_threads = 1) {
  return CpuBackend::Create({.num_threads = num_threads, .target = target});
}

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (KvDtype dtype : {KvDtype::kBf16, KvDtype::kF32}) {
    for (int head_dim : {6, 8, 16, 24, 32, 48, 64, 80, 96, 128, 256}) {
      shapes.push_back({.dtype = dtype, .head_dim = head_dim});
    }
    shapes.push_back({.dtype = dtype, .num_heads = 3, .num_kv_heads = 3});
    shapes.push_back({.dtype = dtype, .num_heads = 7, .num_kv_heads = 1});
    shapes.push_back({.dtype = dtype, .num_heads = 32, .num_kv_heads = 1});
    for (int window : {1, 16, 64, 100, 600}) {
      shapes.push_back({.dtype = dtype, .head_dim = 32, .window = window});
    }
  }
  return shapes;
}

class AttentionShapes : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(All, AttentionShapes, testing::ValuesIn(AllShapes()));

TEST_P(AttentionShapes, TargetsGiveTheBitsOfTheReference) {
  const Shape shape = GetParam();
  for (int num_tokens : {1, 31, 32, 33, 63, 64, 65, 127, 513, 1030}) {
    PagedKv kv(Sequence::Layout(shape), 20);
    const Sequence sequence(shape, num_tokens, kv);
    const int num_rows = std::min(num_tokens, num_tokens > 500 ? 3 : 5);
    const auto want = sequence.Run(*MakeBackend(Target::kScalar), num_rows);
    for (Target target : SupportedTargets()) {
      EXPECT_TRUE(SameBits(sequence.Run(*MakeBackend(target), num_rows), want))
          << TargetName(target) << ", " << num_tokens << " tokens";
    }
  }
}

TEST_P(AttentionShapes, IsAsExactAsItsFormats) {
  const Shape shape = GetParam();
  for (int num_tokens : {1, 33, 130, 700}) {
    PagedKv kv(Sequence::Layout(shape), 12);
    const Sequence sequence(shape, num_tokens, kv);
    const auto got = sequence.Run(*MakeBackend(Target::kAuto), 1);
    for (int head = 0; head < shape.num_heads; ++head) {
      std::vector<double> want;
      double bound = 0;
      sequence.Exact(num_tokens - 1, head, want, bound);
      for (int c = 0; c < shape.head_dim; ++c) {
        ASSERT_NEAR(got[size_t(head) * shape.head_dim + c], want[c], bound)
            << num_tokens << " tokens, head " << head << ", channel " << c;
      }
    }
  }
}

TEST_P(AttentionShapes, RowsDoNotDependOnGroupsOrThreads) {
  const Shape shape = GetParam();
  constexpr int kTokens = 1100, kRows = 67;
  PagedKv kv(Sequence::Layout(shape), 20);
  const Sequence sequence(shape, kTokens, kv);
  for (Target target : SupportedTargets()) {
    if (target == Target::kScalar) continue;
    const auto want = sequence.Run(*MakeBackend(target), kRows);
    for (int num_threads : {1, 2, 5}) {
      const auto backend = MakeBackend(target, num_threads);
      for (const std::vector<int>& groups : std::vector<std::vector<int>>{
               {67}, {1, 66}, {33, 34}, {7, 1, 1, 58}, std::vector<int>(67, 1)}) {
        EXPECT_TRUE(SameBits(sequence.Run(*backend, groups), want))
            << TargetName(target) << ", " << num_threads << " threads, " << groups.size()
            << " groups";
      }
      const auto last = sequence.Run(*backend, 1);
      EXPECT_TRUE(SameBits(last, std::vector<float>(want.end() - last.size(), want.end())));
    }
  }
}

TEST_P(AttentionShapes, StaleSlotsNeverContribute) {
  const Shape shape = GetParam();
  constexpr int kTokens = 545, kRows = 40;
  PagedKv kv(Sequence::Layout(shape), 12);
  Sequence sequence(shape, kTokens, kv);
  const auto backend = MakeBackend(Target::kAuto);
  const auto want = sequence.Run(*backend, kRows);
  kv.FillWithGarbage(99);
  sequence.WriteAgain();
  EXPECT_TRUE(SameBits(sequence.Run(*backend, kRows), want));
}

TEST(Attention, DoesNotDependOnWhereBlocksLie) {
  const Shape shape;
  std::vector<std::vector<float>> results;
  for (uint32_t seed : {1u, 2u, 3u}) {
    PagedKv kv(Sequence::Layout(shape), 16, seed);
    results.push_back(Sequence(shape, 700, kv).Run(*MakeBackend(Target::kAuto, 2), 30));
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

TEST(Attention, DoesNotDependOnTheCompanyInTheBatch) {
  const Shape shape;
  PagedKv kv(Sequence::Layout(shape), 64);
  const Sequence a(shape, 1500, kv, 10), b(shape, 200, kv, 20);
  for (int num_threads : {1, 2}) {
    const auto backend = MakeBackend(Target::kAuto, num_threads);
    const auto alone = a.Run(*backend, 2);
    // Rows 0..1 belong to a, rows 2..101 to b; the queries of both are a's last 102.
    std::vector<float> out(102 * a.row_size());
    const std::vector<RowGroup> groups = {
        {.row_begin = 2, .num_rows = 100, .position = 100, .block_table = b.table().data()},
        {},
        {.row_begin = 0, .num_rows = 2, .position = 1498, .block_table = a.table().data()}};
    AttentionParams params = a.Params(2, out, groups);
    std::vector<float> q(params.q, params.q + 2 * a.row_size());
    q.resize(out.size(), 0.5f);
    params.q = q.data();
    backend->Attention(params);
    EXPECT_TRUE(SameBits({out.begin(), out.begin() + alone.size()}, alone)) << num_threads;
  }
}

TEST(Attention, BlocksOutsideTheWindowAreNotRead) {
  const Shape shape = {.window = 100};
  PagedKv kv(Sequence::Layout(shape), 16);
  Sequence sequence(shape, 900, kv);
  for (Target target : SupportedTargets()) {
    const auto backend = MakeBackend(target);
    const auto want = sequence.Run(*backend, 4);
    const std::vector<BlockId> table = sequence.table();
    // The first row is at 896 and sees 797 onwards: blocks 0 .. 11 may have been freed.
    for (int b = 0; b < 797 / kBlockSize; ++b) sequence.table()[b] = -1;
    EXPECT_TRUE(SameBits(sequence.Run(*backend, 4), want)) << TargetName(target);
    sequence.table() = table;
  }
}

TEST(Attention, LongPromptsInManyRows) {
  const Shape shape = {.num_heads = 2, .num_kv_heads = 1};
  PagedKv kv(Sequence::Layout(shape), 40);
  const Sequence sequence(shape, 2300, kv);
  const auto want = sequence.Run(*MakeBackend(Target::kAuto), 2300);
  for (int chunk : {1, 63, 511}) {
    const int first = 2300 % chunk;
    std::vector<int> groups(2300 / chunk, chunk);
    if (first > 0) groups.insert(groups.begin(), first);
    EXPECT_TRUE(SameBits(sequence.Run(*MakeBackend(Target::kAuto, 2), groups), want)) << chunk;
  }
}

}  // namespace
}  // namespace lynx::cpu
