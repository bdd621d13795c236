// SPDX-License-Identifier: Apache-2.0
// How close a codec's cache is to the exact one, from the logits that both give on the same tokens.
//
// Rows are teacher-forced: both caches see the exact cache's greedy text. As long as a draft agrees
// with that text, drafting greedily gives the same rows, so the number of accepted drafts is the
// number of rows up to the first that disagrees.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lynx/types.h"

namespace lynx {

// What the exact cache says after one token.
struct ExactRow {
  std::vector<float> log_probs;  // [vocab_size]
  TokenId choice = 0;            // the most probable; the lowest id of equals
};
ExactRow MakeExactRow(std::span<const float> logits);

struct RowScore {
  bool agrees = false;    // the same most probable token
  double kl = 0;          // KL(exact || codec) in nats
  double margin = 0;      // log p of the codec's first choice - that of its second, in nats
  double nll_change = 0;  // -log p(target), the codec's minus the exact one's
};
// logits [vocab_size]: the codec's, after the same token. target: a token to compare the
// probability of.
RowScore ScoreRow(const ExactRow& exact, std::span<const float> logits, TokenId target);

// Drafts accepted of at most `limit` that start at row `begin`.
int AcceptedFrom(std::span<const RowScore> rows, size_t begin, int limit);
// Their mean over all starts that have `limit` rows after them. 0 < limit <= rows.size().
double MeanAccepted(std::span<const RowScore> rows, int limit);

// Squared differences and squares of what was compared.
struct SquaredError {
  double error = 0, power = 0;
  void operator+=(const SquaredError& other) {
    error += other.error;
    power += other.power;
  }
  double normalized() const { return power == 0 ? 0 : error / power; }
};

// One prompt through one codec.
struct PromptScore {
  std::vector<RowScore> drafted;          // over the exact greedy text
  std::vector<RowScore> true_text;        // over the text that really follows
  int num_needles = 0;                    // that the exact cache answers
  int num_needles_kept = 0;               // and the codec's too
  size_t bytes = 0;                       // of the prompt's KV, as it travels
  size_t num_elements = 0;                // of the prompt's KV
  std::vector<SquaredError> layer_error;  // [layer * 2 + kind]
};

// Means over prompts.
struct AccuracySummary {
  int num_prompts = 0;
  double agreement = 0;         // share of rows of the greedy text
  double agreement_sd = 0;      // standard deviation over prompts
  double true_agreement = 0;    // share of rows of the true text
  double kl = 0, kl_first = 0;  // over the greedy text; of its first row
  double ppl_ratio = 0;         // perplexity of the true text, the codec's / the exact one's
  double accepted_16 = 0, accepted_32 = 0;  // mean over starts
  double accepted_64 = 0;                   // from the first row on
  std::vector<int> runs;                    // [num_prompts] accepted of 64 from the first row on
  int num_needles = 0, num_needles_kept = 0;
  double firm_share = 0, firm_wrong = 0;  // rows with a margin above 0.5 nat; wrong ones of them
  double bits_per_element = 0;
  std::vector<SquaredError> layer_error;
};
AccuracySummary Summarize(std::span<const PromptScore> prompts);

}  // namespace lynx
