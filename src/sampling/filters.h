// SPDX-License-Identifier: Apache-2.0
// The logits processors and filters of vLLM's V1 sampler, in its order: allowed_token_ids,
// min_tokens, logit_bias, penalties, temperature, min_p, top_k, top_p. In float64, with the same
// bits on every machine.
#pragma once

#include <span>
#include <vector>

#include "kernels/common/gumbel.h"
#include "lynx/request.h"
#include "sampling/token_counts.h"

namespace lynx {

inline bool IsGreedy(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature;
}

struct FilterInput {
  std::span<const float> logits;  // [vocab_size]
  const SamplingParams& params;
  const TokenCounts& counts;
  int num_output_tokens = 0;  // before the token that is being chosen
};

// Scratch for one thread; buffers are allocated once.
class Filters {
 public:
  explicit Filters(int vocab_size);

  // True when allowed ids, min_tokens, bias or penalties may change a logit.
  static bool ChangesLogits(const FilterInput& input);

  // Steps 1 to 3. The result, [vocab_size], is valid until the next call; -inf = ruled out. When
  // everything is ruled out, the untouched logits.
  std::span<const double> Process(const FilterInput& input);

  // Steps 1 to 8 for a temperature that is not greedy: logit / temperature, -inf = ruled out.
  struct Result {
    std::span<const double> scores;      // [vocab_size]
    std::span<const TokenId> survivors;  // ascending; empty = whatever is finite in scores
  };
  Result Apply(const FilterInput& input);

 private:
  void RuleOut(const FilterInput& input);
  void Penalize(const FilterInput& input);
  void KeepTopK(int k);
  void KeepTopP(double top_p);
  size_t NucleusSize(double mass, double max);
  void CollectSurvivors(double threshold);

  std::vector<double> scores_;
  std::vector<double> heap_;
  std::vector<TokenId> survivors_;
  std::vector<std::pair<double, TokenId>> ranked_;
  std::vector<uint8_t> allowed_;
};

}  // namespace lynx
