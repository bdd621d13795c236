// SPDX-License-Identifier: Apache-2.0
// The ranks of a group: what each brings to a sum, and a thread for each.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

namespace lynx {

// [size][n], values of all magnitudes, so that every order of adding gives other bits.
inline std::vector<std::vector<float>> RandomRankData(int size, int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<float>> data(size, std::vector<float>(n));
  for (auto& x : data) {
    for (float& value : x) {
      value = std::ldexp(static_cast<float>(random()) - 2e9f, static_cast<int>(random() % 20));
    }
  }
  return data;
}

// Calls run for each rank on a thread of its own, and waits for all.
inline void RunRanks(int size, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back(run, r);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lynx
