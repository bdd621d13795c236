// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lynx {
namespace {

constexpr int64_t kMs = 1'000'000;

AnswerRecord Answer(int64_t due_ms, int64_t started_ms, const std::vector<int64_t>& event_ms,
                    int64_t output_tokens) {
  AnswerRecord record;
  record.due_ns = due_ms * kMs;
  record.started_ns = started_ms * kMs;
  for (const int64_t ms : event_ms) record.event_ns.push_back(ms * kMs);
  record.prompt_tokens = 10;
  record.output_tokens = output_tokens;
  return record;
}

// Two streams that overlap, one of a single token after both, and one that failed.
std::vector<AnswerRecord> Script() {
  std::vector<AnswerRecord> answers = {
      Answer(0, 0, {100, 150, 250}, 3),      // ttft 100, gaps 50 100, e2el 250, tpot 75
      Answer(50, 200, {500, 520, 1400}, 5),  // ttft 300, gaps 20 880, e2el 1200, tpot 225
      Answer(1400, 1400, {1450}, 1),         // ttft 50, e2el 50, no tpot
      Answer(0, 0, {60}, 9)};
  answers[3].error = "broken";
  return answers;
}

TEST(ServeMetricsTest, AScriptByHand) {
  const double percentiles[] = {0, 50, 90, 100};
  const ServeMetrics m = ComputeServeMetrics(Script(), 2000 * kMs, {}, percentiles);
  EXPECT_EQ(m.completed, 3);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.total_input_tokens, 30);
  EXPECT_EQ(m.total_output_tokens, 9);
  EXPECT_DOUBLE_EQ(m.duration_s, 2);
  EXPECT_DOUBLE_EQ(m.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(m.output_throughput, 4.5);
  EXPECT_DOUBLE_EQ(m.total_token_throughput, 19.5);

  EXPECT_DOUBLE_EQ(m.ttft_ms.mean, 150);
  EXPECT_DOUBLE_EQ(m.ttft_ms.median, 100);
  EXPECT_DOUBLE_EQ(m.ttft_ms.std, std::sqrt((50 * 50 + 150 * 150 + 100 * 100) / 3.0));
  EXPECT_DOUBLE_EQ(m.ttft_ms.percentiles[0], 50);
  EXPECT_DOUBLE_EQ(m.ttft_ms.percentiles[1], 100);
  EXPECT_DOUBLE_EQ(m.ttft_ms.percentiles[2], 260);  // 1.8 between 100 and 300
  EXPECT_DOUBLE_EQ(m.ttft_ms.percentiles[3], 300);

  EXPECT_DOUBLE_EQ(m.tpot_ms.mean, 150);
  EXPECT_DOUBLE_EQ(m.tpot_ms.median, 150);
  EXPECT_DOUBLE_EQ(m.tpot_ms.std, 75);
  EXPECT_DOUBLE_EQ(m.itl_ms.mean, 262.5);
  EXPECT_DOUBLE_EQ(m.itl_ms.median, 75);
  EXPECT_DOUBLE_EQ(m.e2el_ms.mean, 500);
  EXPECT_DOUBLE_EQ(m.e2el_ms.median, 250);
  EXPECT_DOUBLE_EQ(m.queue_ms.mean, 50);
  EXPECT_DOUBLE_EQ(m.e2el_with_queue_ms.percentiles[3], 1350);

  // Second 0: all 3 tokens of the first, two thirds of 5; second 1: the rest, and the single one.
  ASSERT_EQ(m.tokens_per_s.size(), 2u);
  EXPECT_DOUBLE_EQ(m.tokens_per_s[0], 3 + 10.0 / 3);
  EXPECT_DOUBLE_EQ(m.tokens_per_s[1], 5.0 / 3 + 1);
  EXPECT_DOUBLE_EQ(m.max_output_tokens_per_s, 3 + 10.0 / 3);
  EXPECT_EQ(m.max_concurrent_requests, 2);  // the third starts as the second ends
}

double Goodput(const ServeSlo& slo) {
  return ComputeServeMetrics(Script(), 1000 * kMs, slo, {}).request_goodput;
}

TEST(ServeMetricsTest, GoodputWantsEveryLimitAndCountsNoFailure) {
  EXPECT_DOUBLE_EQ(Goodput({}), 3);
  EXPECT_DOUBLE_EQ(Goodput({.ttft_ms = 100}), 2);  // the limit itself is within
  EXPECT_DOUBLE_EQ(Goodput({.ttft_ms = 99.9}), 1);
  EXPECT_DOUBLE_EQ(Goodput({.tpot_ms = 75}), 2);  // one token: 0
  EXPECT_DOUBLE_EQ(Goodput({.tpot_ms = 0}), 1);
  EXPECT_DOUBLE_EQ(Goodput({.e2el_ms = 1200}), 3);
  EXPECT_DOUBLE_EQ(Goodput({.ttft_ms = 300, .tpot_ms = 75, .e2el_ms = 250}), 2);
  EXPECT_DOUBLE_EQ(Goodput({.ttft_ms = 60, .tpot_ms = 100, .e2el_ms = 250}), 1);
}

TEST(ServeMetricsTest, NothingCompletedIsAllZero) {
  AnswerRecord failed;
  failed.error = "refused";
  const double percentiles[] = {99};
  const ServeMetrics m = ComputeServeMetrics({&failed, 1}, 1000 * kMs, {}, percentiles);
  EXPECT_EQ(m.completed, 0);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.request_throughput, 0);
  EXPECT_EQ(m.ttft_ms.percentiles, std::vector<double>{0});
  EXPECT_TRUE(m.tokens_per_s.empty());
  EXPECT_EQ(ComputeServeMetrics({}, 0, {}, {}).output_throughput, 0);
}

TEST(DescribeTest, PercentilesAreInterpolated) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  const double percentiles[] = {25, 99, 99.9};
  const Distribution d = Describe(values, percentiles);
  EXPECT_DOUBLE_EQ(d.mean, 50);
  EXPECT_DOUBLE_EQ(d.percentiles[0], 25);
  EXPECT_DOUBLE_EQ(d.percentiles[1], 99);
  EXPECT_NEAR(d.percentiles[2], 99.9, 1e-9);
  EXPECT_DOUBLE_EQ(Describe({4, 1}, {}).median, 2.5);
  EXPECT_DOUBLE_EQ(Describe({4}, percentiles).percentiles[0], 4);
}

}  // namespace
}  // namespace lynx
