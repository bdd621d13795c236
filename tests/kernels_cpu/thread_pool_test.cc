// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "kernels/cpu/float_mode.h"

namespace lynx::cpu {
namespace {

// Denormals are flushed: the smallest normal number halved is zero.
bool Flushes() {
  volatile float x = 1.17549435e-38f;
  volatile float half = x * 0.5f;
  return half == 0.0f;
}

class ThreadPoolSizes : public testing::TestWithParam<int> {};
// More threads than any test machine's cores are among them: those never spin.
INSTANTIATE_TEST_SUITE_P(All, ThreadPoolSizes, testing::Values(1, 2, 3, 7, 300));

TEST_P(ThreadPoolSizes, EveryThreadRunsEveryJobOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  std::vector<int> counts(GetParam());
  const int num_jobs = GetParam() > 100 ? 20 : 500;
  for (int job = 0; job < num_jobs; ++job) {
    pool.Parallel([&](int thread) { ++counts[thread]; });
    for (int count : counts) ASSERT_EQ(count, job + 1);
  }
}

TEST_P(ThreadPoolSizes, ThreadZeroIsTheCaller) {
  ThreadPool pool(GetParam());
  const auto caller = std::this_thread::get_id();
  for (int job = 0; job < 20; ++job) {
    pool.Parallel([&](int thread) {
      if (thread != 0) return;
      EXPECT_EQ(std::this_thread::get_id(), caller);
    });
  }
}

// A worker that has no core in time holds nobody up: its share is the caller's then.
TEST(ThreadPool, ManyShortJobsOnFewCores) {
  ThreadPool pool(16);
  std::vector<int> counts(16);
  constexpr int kNumJobs = 2000;
  for (int job = 0; job < kNumJobs; ++job) pool.Parallel([&](int thread) { ++counts[thread]; });
  for (int count : counts) EXPECT_EQ(count, kNumJobs);
}

TEST_P(ThreadPoolSizes, DenormalsAreFlushedInsideAndNotOutside) {
  ThreadPool pool(GetParam());
  ASSERT_FALSE(Flushes());
  std::atomic<int> num_flushing{0};
  pool.Parallel([&](int) { num_flushing += Flushes(); });
  EXPECT_EQ(num_flushing, GetParam());
  EXPECT_FALSE(Flushes());
}

TEST_P(ThreadPoolSizes, WaitsForTheSlowestThread) {
  ThreadPool pool(GetParam());
  for (int slow : {0, GetParam() - 1}) {
    std::atomic<int64_t> done{0};
    pool.Parallel([&](int thread) {
      volatile int64_t work = 0;
      while (thread == slow && work < 3'000'000) work = work + 1;
      ++done;
    });
    EXPECT_EQ(done, GetParam());
  }
}

TEST(ThreadPool, PoolsAreIndependent) {
  ThreadPool a(2), b(3);
  std::atomic<int> count{0};
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) b.Parallel([&](int) { ++count; });
  });
  for (int i = 0; i < 100; ++i) a.Parallel([&](int) { ++count; });
  other.join();
  EXPECT_EQ(count, 100 * 2 + 100 * 3);
}

TEST(ThreadPool, AnUnusedPoolEnds) { ThreadPool pool(4); }

}  // namespace
}  // namespace lynx::cpu
