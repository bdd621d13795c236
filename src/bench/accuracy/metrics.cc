// SPDX-License-Identifier: Apache-2.0
#include "bench/accuracy/metrics.h"

#include <algorithm>
#include <cmath>

namespace lynx {
namespace {

constexpr double kFirmMargin = 0.5;  // nats

double LogSumExp(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - most);
  return most + std::log(sum);
}

double Mean(double sum, double n) { return n == 0 ? 0 : sum / n; }

// Sums over the rows of all prompts.
struct RowSums {
  void Add(std::span<const RowScore> rows) {
    for (const RowScore& row : rows) {
      ++num_rows;
      num_agreeing += row.agrees;
      kl += row.kl;
      nll_change += row.nll_change;
      const bool firm = row.margin > kFirmMargin;
      num_firm += firm;
      num_firm_wrong += firm && !row.agrees;
    }
  }
  double num_rows = 0, num_agreeing = 0, kl = 0, nll_change = 0, num_firm = 0, num_firm_wrong = 0;
};

}  // namespace

ExactRow MakeExactRow(std::span<const float> logits) {
  const double lse = LogSumExp(logits);
  ExactRow row;
  row.choice =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  row.log_probs.reserve(logits.size());
  for (const float x : logits) row.log_probs.push_back(static_cast<float>(x - lse));
  return row;
}

RowScore ScoreRow(const ExactRow& exact, std::span<const float> logits, TokenId target) {
  const double lse = LogSumExp(logits);
  RowScore score;
  size_t first = 0;
  float second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float log_p = exact.log_probs[i];
    score.kl += std::exp(log_p) * double{log_p - static_cast<float>(logits[i] - lse)};
    if (i == 0) continue;
    if (logits[i] > logits[first]) {
      second = logits[first];
      first = i;
    } else {
      second = std::max(second, logits[i]);
    }
  }
  score.agrees = static_cast<TokenId>(first) == exact.choice;
  score.margin = logits[first] - second;
  score.nll_change = exact.log_probs[target] - static_cast<float>(logits[target] - lse);
  return score;
}

int AcceptedFrom(std::span<const RowScore> rows, size_t begin, int limit) {
  int n = 0;
  while (n < limit && begin + n < rows.size() && rows[begin + n].agrees) ++n;
  return n;
}

double MeanAccepted(std::span<const RowScore> rows, int limit) {
  const size_t num_starts = rows.size() - limit + 1;
  double sum = 0;
  for (size_t s = 0; s < num_starts; ++s) sum += AcceptedFrom(rows, s, limit);
  return sum / static_cast<double>(num_starts);
}

AccuracySummary Summarize(std::span<const PromptScore> prompts) {
  AccuracySummary s;
  RowSums drafted, true_text;
  double squares = 0, bytes = 0, elements = 0;
  for (const PromptScore& p : prompts) {
    RowSums own;
    own.Add(p.drafted);
    squares += std::pow(Mean(own.num_agreeing, own.num_rows), 2);
    s.agreement += Mean(own.num_agreeing, own.num_rows);
    drafted.Add(p.drafted);
    true_text.Add(p.true_text);
    s.kl_first += p.drafted.front().kl;
    s.accepted_16 += MeanAccepted(p.drafted, 16);
    s.accepted_32 += MeanAccepted(p.drafted, 32);
    s.runs.push_back(AcceptedFrom(p.drafted, 0, 64));
    s.accepted_64 += s.runs.back();
    s.num_needles += p.num_needles;
    s.num_needles_kept += p.num_needles_kept;
    bytes += static_cast<double>(p.bytes);
    elements += static_cast<double>(p.num_elements);
    s.layer_error.resize(p.layer_error.size());
    for (size_t i = 0; i < p.layer_error.size(); ++i) s.layer_error[i] += p.layer_error[i];
  }
  const auto n = static_cast<double>(prompts.size());
  s.num_prompts = static_cast<int>(prompts.size());
  for (double* mean : {&s.agreement, &s.kl_first, &s.accepted_16, &s.accepted_32, &s.accepted_64}) {
    *mean = Mean(*mean, n);
  }
  s.agreement_sd = std::sqrt(std::max(0.0, Mean(squares, n) - s.agreement * s.agreement));
  s.true_agreement = Mean(true_text.num_agreeing, true_text.num_rows);
  s.kl = Mean(drafted.kl, drafted.num_rows);
  s.ppl_ratio = std::exp(Mean(true_text.nll_change, true_text.num_rows));
  s.firm_share = Mean(drafted.num_firm, drafted.num_rows);
  s.firm_wrong = Mean(drafted.num_firm_wrong, drafted.num_firm);
  s.bits_per_element = Mean(8 * bytes, elements);
  return s;
}

}  // namespace lynx
