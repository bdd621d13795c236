// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_collective.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/cpu/float_mode.h"
#include "tests/ranks.h"

namespace lynx::cpu {
namespace {

std::vector<float> SumInRankOrder(const std::vector<std::vector<float>>& data) {
  ScopedFlushToZero flush_to_zero;
  std::vector<float> sum = data[0];
  for (size_t r = 1; r < data.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += data[r][i];
  }
  return sum;
}

class ThreadCollectiveSizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, ThreadCollectiveSizes, testing::Values(1, 2, 3, 4, 8));

TEST_P(ThreadCollectiveSizes, SumsInRankOrderOnEveryRank) {
  const int size = GetParam();
  const auto ranks = MakeThreadCollectives(size);
  for (const int64_t n : {0, 1, 15, 16, 17, 63, 576, 1024, 5000}) {
    auto data = RandomRankData(size, n, static_cast<unsigned>(n + 1));
    const std::vector<float> want = SumInRankOrder(data);
    std::atomic<int> num_ok = 0;
    RunRanks(size, [&](int r) { num_ok += ranks[r]->AllReduceSum(data[r].data(), n); });
    EXPECT_EQ(num_ok, size);
    for (const auto& got : data) {
      EXPECT_TRUE(n == 0 || std::memcmp(got.data(), want.data(), n * sizeof(float)) == 0) << n;
    }
  }
}

// The sum of an element is the same whatever else is summed with it.
TEST_P(ThreadCollectiveSizes, AnElementDoesNotDependOnItsCompany) {
  const int size = GetParam();
  const auto ranks = MakeThreadCollectives(size);
  const auto data = RandomRankData(size, 3000, 7);
  const std::vector<float> want = SumInRankOrder(data);
  for (const int64_t begin : {1, 100, 2999}) {
    auto part = data;
    for (auto& x : part) x.erase(x.begin(), x.begin() + begin);
    RunRanks(size,
             [&](int r) { EXPECT_TRUE(ranks[r]->AllReduceSum(part[r].data(), 3000 - begin)); });
    EXPECT_EQ(std::memcmp(part[0].data(), &want[begin], (3000 - begin) * sizeof(float)), 0);
  }
}

TEST_P(ThreadCollectiveSizes, ManyCallsInARow) {
  const int size = GetParam();
  const auto ranks = MakeThreadCollectives(size);
  RunRanks(size, [&](int r) {
    for (int call = 0; call < 300; ++call) {
      std::vector<float> x(1 + call % 40, static_cast<float>(r + call));
      ASSERT_TRUE(ranks[r]->AllReduceSum(x.data(), static_cast<int64_t>(x.size())));
      const auto want = static_cast<float>(size * (size - 1) / 2 + size * call);
      for (float value : x) ASSERT_EQ(value, want);
    }
  });
}

TEST(ThreadCollective, AbortFreesTheWaitingRanksForGood) {
  const auto ranks = MakeThreadCollectives(3);
  std::vector<std::vector<float>> data(3, std::vector<float>(100, 1.0f));
  std::atomic<int> num_failed = 0;
  RunRanks(3, [&](int r) {
    if (r == 2) {
      ranks[2]->Abort();  // instead of taking part
    } else if (!ranks[r]->AllReduceSum(data[r].data(), 100)) {
      ++num_failed;
    }
  });
  EXPECT_EQ(num_failed, 2);
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(ranks[r]->AllReduceSum(data[r].data(), 100));
}

TEST(ThreadCollective, DifferentCountsAbortTheGroup) {
  const auto ranks = MakeThreadCollectives(2);
  std::vector<std::vector<float>> data(2, std::vector<float>(100, 1.0f));
  RunRanks(2, [&](int r) { EXPECT_FALSE(ranks[r]->AllReduceSum(data[r].data(), 99 + r)); });
}

}  // namespace
}  // namespace lynx::cpu
