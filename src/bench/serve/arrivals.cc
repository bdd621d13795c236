// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/arrivals.h"

#include <cmath>
#include <random>

namespace lynx {

std::vector<int64_t> ArrivalTimes(int num_requests, double rate, double burstiness, uint64_t seed) {
  std::vector<int64_t> due(num_requests, 0);
  if (std::isinf(rate)) return due;
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gamma(std::isinf(burstiness) ? 1.0 : burstiness);
  std::vector<double> sums;
  double sum = 0;
  for (int i = 0; i < num_requests; ++i) {
    sum += std::isinf(burstiness) ? 1.0 : gamma(random);
    sums.push_back(sum);
  }
  // Very bursty gaps can all round to zero: then everything is due at the end.
  for (int i = 0; i < num_requests; ++i) {
    const double share = sum > 0 ? sums[i] / sum : 1.0;
    due[i] = std::llround(share * num_requests / rate * 1e9);
  }
  return due;
}

}  // namespace lynx
