// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/panel_runs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace lynx::cpu {
namespace {

TEST(PanelRuns, EveryPanelIsTakenOnce) {
  PanelRuns runs;
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t panels : {0, 1, 5, 36, 1000}) {
      for (int step : {1, 2, 4}) {
        std::vector<std::atomic<int>> taken(panels);
        runs.Split(panels, threads);
        pool.Parallel([&](int thread) {
          runs.Take(thread, step, [&](int64_t begin, int64_t end) {
            EXPECT_LE(end - begin, step);
            for (int64_t p = begin; p < end; ++p) ++taken[p];
          });
        });
        for (int64_t p = 0; p < panels; ++p) ASSERT_EQ(taken[p], 1) << p << " of " << panels;
      }
    }
  }
}

TEST(PanelRuns, WhoeverComesFirstTakesAll) {
  PanelRuns runs;
  runs.Split(10, 3);
  std::vector<int64_t> begins;
  runs.Take(1, 2, [&](int64_t begin, int64_t) { begins.push_back(begin); });
  EXPECT_EQ(begins, (std::vector<int64_t>{3, 5, 6, 8, 0, 2}));
  runs.Take(0, 2, [](int64_t, int64_t) { ADD_FAILURE(); });
}

}  // namespace
}  // namespace lynx::cpu
