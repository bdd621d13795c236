// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/arrivals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lynx {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Moments {
  double mean = 0, variance = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  m.mean = std::accumulate(values.begin(), values.end(), 0.0) / values.size();
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / values.size();
  return m;
}

std::vector<double> GapsInSeconds(const std::vector<int64_t>& due) {
  std::vector<double> gaps;
  for (size_t i = 1; i < due.size(); ++i) gaps.push_back((due[i] - due[i - 1]) / 1e9);
  return gaps;
}

// Arrivals in each of the whole windows.
std::vector<double> Counts(const std::vector<int64_t>& due, int64_t window_ns) {
  std::vector<double> counts(due.back() / window_ns);
  for (const int64_t time : due) {
    if (static_cast<size_t>(time / window_ns) < counts.size()) ++counts[time / window_ns];
  }
  return counts;
}

// Gaps have mean 1/rate and variance 1/(rate^2 shape). The sample variance of 20,000 gamma gaps is
// within 4 of its standard errors, sqrt((2 + 6/shape) / n) of itself. Counts in windows of many
// gaps tend to the variance mean/shape, which is the mean for a Poisson process.
TEST(ArrivalTimesTest, MomentsOfTheGammaProcess) {
  constexpr int kNum = 20000;
  constexpr double kRate = 8;
  for (const double shape : {0.25, 1.0, 4.0}) {
    for (const uint64_t seed : {1, 2, 3}) {
      const auto due = ArrivalTimes(kNum, kRate, shape, seed);
      EXPECT_TRUE(std::is_sorted(due.begin(), due.end()));
      EXPECT_EQ(due.back(), std::llround(kNum / kRate * 1e9));
      const Moments gaps = MomentsOf(GapsInSeconds(due));
      EXPECT_NEAR(gaps.mean * kRate, 1, 0.001);
      const double error = std::sqrt((2 + 6 / shape) / kNum);
      EXPECT_NEAR(gaps.variance * kRate * kRate * shape, 1, 4 * error) << shape << ", " << seed;
      const Moments counts = MomentsOf(Counts(due, 10'000'000'000));
      EXPECT_NEAR(counts.variance / counts.mean * shape, 1, 0.4) << shape << ", " << seed;
    }
  }
}

TEST(ArrivalTimesTest, EvenAllAtOnceAndBySeed) {
  EXPECT_EQ(ArrivalTimes(4, 2, kInfinity, 9),
            (std::vector<int64_t>{500'000'000, 1'000'000'000, 1'500'000'000, 2'000'000'000}));
  EXPECT_EQ(ArrivalTimes(3, kInfinity, 1, 9), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ArrivalTimes(50, 3, 1, 7), ArrivalTimes(50, 3, 1, 7));
  EXPECT_NE(ArrivalTimes(50, 3, 1, 7), ArrivalTimes(50, 3, 1, 8));
  EXPECT_EQ(ArrivalTimes(1, 4, 1, 7), std::vector<int64_t>{250'000'000});
  EXPECT_EQ(ArrivalTimes(3, 1, 1e-9, 7).back(), 3'000'000'000);
}

}  // namespace
}  // namespace lynx
