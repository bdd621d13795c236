// SPDX-License-Identifier: Apache-2.0
// The split of an element-wise operation over the pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/float_mode.h"
#include "kernels/cpu/thread_pool.h"

namespace lynx::cpu {

// Calls f(begin, end) over disjoint ranges that cover rows 0 .. num_rows - 1: on the caller alone
// while the rows together are too small to pay for a fork, else one range per thread.
template <typename F>
void SplitRows(ThreadPool& pool, int64_t num_rows, int64_t elements_per_row, const F& f) {
  constexpr int64_t kMinElementsPerThread = 8192;  // about 1 µs
  const int64_t wanted = num_rows * elements_per_row / kMinElementsPerThread;
  const int64_t num_ranges = std::min<int64_t>({pool.num_threads(), wanted, num_rows});
  if (num_ranges <= 1) {
    ScopedFlushToZero flush_to_zero;
    f(int64_t{0}, num_rows);
    return;
  }
  pool.Parallel([&](int thread) {
    if (thread >= num_ranges) return;
    f(num_rows * thread / num_ranges, num_rows * (thread + 1) / num_ranges);
  });
}

}  // namespace lynx::cpu
