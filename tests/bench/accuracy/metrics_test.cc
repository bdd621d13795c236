// SPDX-License-Identifier: Apache-2.0
#include "bench/accuracy/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lynx {
namespace {

std::vector<float> Logs(const std::vector<double>& probabilities, float shift) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + shift);
  return logits;
}

std::vector<RowScore> Rows(const std::string& agreeing) {
  std::vector<RowScore> rows;
  for (const char c : agreeing) rows.push_back({.agrees = c == '1'});
  return rows;
}

TEST(AccuracyMetricsTest, OneRowByHand) {
  const ExactRow exact = MakeExactRow(Logs({0.5, 0.3, 0.2}, 7));
  EXPECT_EQ(exact.choice, 0);
  EXPECT_NEAR(exact.log_probs[1], std::log(0.3), 1e-6);
  const RowScore score = ScoreRow(exact, Logs({0.25, 0.5, 0.25}, -3), 2);
  EXPECT_FALSE(score.agrees);
  EXPECT_NEAR(score.kl, 0.5 * std::log(2) + 0.3 * std::log(0.6) + 0.2 * std::log(0.8), 1e-6);
  EXPECT_NEAR(score.margin, std::log(2), 1e-6);
  EXPECT_NEAR(score.nll_change, std::log(0.2 / 0.25), 1e-6);
}

TEST(AccuracyMetricsTest, TheSameLogitsAgreeAndTheLowestIdOfEqualsIsChosen) {
  const std::vector<float> logits = {1, 4, 4, 2};
  const ExactRow exact = MakeExactRow(logits);
  EXPECT_EQ(exact.choice, 1);
  const RowScore score = ScoreRow(exact, logits, 3);
  EXPECT_TRUE(score.agrees);
  EXPECT_EQ(score.kl, 0);
  EXPECT_EQ(score.margin, 0);
}

TEST(AccuracyMetricsTest, AcceptedIsTheRunUpToTheFirstThatDisagrees) {
  const auto rows = Rows("11011101");
  EXPECT_EQ(AcceptedFrom(rows, 0, 4), 2);
  EXPECT_EQ(AcceptedFrom(rows, 2, 4), 0);
  EXPECT_EQ(AcceptedFrom(rows, 3, 2), 2);
  EXPECT_EQ(AcceptedFrom(rows, 3, 9), 3);
  EXPECT_EQ(AcceptedFrom(rows, 7, 9), 1);
  // Starts 0 .. 4: 2, 1, 0, 3, 2.
  EXPECT_DOUBLE_EQ(MeanAccepted(rows, 4), 8.0 / 5);
  EXPECT_EQ(MeanAccepted(rows, 8), 2);
}

TEST(AccuracyMetricsTest, SummaryOfTwoPrompts) {
  PromptScore a, b;
  a.drafted = Rows(std::string(64, '1'));
  b.drafted = Rows(std::string(32, '1') + std::string(32, '0'));
  for (RowScore& row : a.drafted) row.kl = 0.25;
  b.drafted[0].kl = 1;
  b.drafted[0].margin = b.drafted[40].margin = 0.75;
  a.true_text = b.true_text = Rows("10");
  a.true_text[0].nll_change = 0.4;
  a.num_needles = 3;
  a.num_needles_kept = 2;
  a.bytes = 300;
  b.bytes = 100;
  a.num_elements = b.num_elements = 200;
  a.layer_error = {{1, 4}};
  b.layer_error = {{2, 8}};
  const PromptScore prompts[] = {a, b};
  const AccuracySummary s = Summarize(prompts);
  EXPECT_EQ(s.num_prompts, 2);
  EXPECT_DOUBLE_EQ(s.agreement, 0.75);
  EXPECT_DOUBLE_EQ(s.agreement_sd, 0.25);
  EXPECT_DOUBLE_EQ(s.true_agreement, 0.5);
  EXPECT_DOUBLE_EQ(s.kl, (64 * 0.25 + 1) / 128);
  EXPECT_DOUBLE_EQ(s.kl_first, 0.625);
  EXPECT_DOUBLE_EQ(s.ppl_ratio, std::exp(0.1));
  EXPECT_EQ(s.runs, (std::vector<int>{64, 32}));
  EXPECT_DOUBLE_EQ(s.accepted_64, 48);
  // Starts 0 .. 32 of the second prompt: 32, 31 ... 0.
  EXPECT_DOUBLE_EQ(s.accepted_32, (32 + 16) / 2.0);
  EXPECT_EQ(s.num_needles, 3);
  EXPECT_EQ(s.num_needles_kept, 2);
  EXPECT_DOUBLE_EQ(s.firm_share, 2.0 / 128);
  EXPECT_DOUBLE_EQ(s.firm_wrong, 0.5);
  EXPECT_DOUBLE_EQ(s.bits_per_element, 8);
  EXPECT_DOUBLE_EQ(s.layer_error[0].normalized(), 0.25);
}

}  // namespace
}  // namespace lynx
