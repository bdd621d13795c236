// SPDX-License-Identifier: Apache-2.0
// The panels of a product, divided among threads: one run of neighbours for each, which it reads in
// order. Whoever is done with its own goes on with what is left of the others', so that none waits
// for a thread that is slow or has no core.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace lynx::cpu {

class PanelRuns {
 public:
  // Divides panels 0 .. num_panels - 1. No thread may be taking any.
  void Split(int64_t num_panels, int num_threads) {
    if (num_runs_ != num_threads) runs_ = std::make_unique<Run[]>(num_threads);
    num_runs_ = num_threads;
    for (int t = 0; t < num_runs_; ++t) {
      runs_[t].next.store(num_panels * t / num_threads, std::memory_order_relaxed);
      runs_[t].end = num_panels * (t + 1) / num_threads;
    }
  }

  // Calls f(begin, end) for panels that no other thread gets, at most `step` of them at a time,
  // until none are left. Any number of threads at once.
  template <typename F>
  void Take(int thread, int step, const F& f) {
    for (int i = 0; i < num_runs_; ++i) {
      Run& run = runs_[(thread + i) % num_runs_];
      while (run.next.load(std::memory_order_relaxed) < run.end) {
        const int64_t begin = run.next.fetch_add(step, std::memory_order_relaxed);
        if (begin < run.end) f(begin, std::min(begin + step, run.end));
      }
    }
  }

 private:
  struct alignas(64) Run {
    std::atomic<int64_t> next;
    int64_t end;
  };
  std::unique_ptr<Run[]> runs_;
  int num_runs_ = 0;
};

}  // namespace lynx::cpu
