// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace lynx {

struct Timing {
  double median_s = 0;
  double spread = 0;  // (slowest - fastest) / median
};

// Runs it once to warm up and then `repeats` times.
template <typename F>
Timing Measure(int repeats, F&& run) {
  run();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds.back() - seconds.front()) / median};
}

}  // namespace lynx
