// SPDX-License-Identifier: Apache-2.0
// Which tokens a sequence has seen: what penalties need, kept up to date token by token.
#pragma once

#include <span>
#include <unordered_map>

#include "lynx/request.h"

namespace lynx {

// A value; stays empty (and costs nothing) for requests without penalties.
class TokenCounts {
 public:
  struct Count {
    int output = 0;  // occurrences among the output tokens
    bool in_prompt = false;
  };

  TokenCounts() = default;
  explicit TokenCounts(const SamplingParams& params)
      : enabled_(params.presence_penalty != 0 || params.frequency_penalty != 0 ||
                 params.repetition_penalty != 1) {}

  bool enabled() const { return enabled_; }
  const std::unordered_map<TokenId, Count>& counts() const { return counts_; }

  void AddPrompt(std::span<const TokenId> tokens) {
    if (!enabled_) return;
    for (TokenId t : tokens) counts_[t].in_prompt = true;
  }
  void AddOutput(TokenId token) {
    if (enabled_) ++counts_[token].output;
  }
  // Takes back an AddOutput (of a draft that may yet be rejected).
  void RemoveOutput(TokenId token) {
    if (enabled_) --counts_[token].output;
  }

 private:
  bool enabled_ = false;
  std::unordered_map<TokenId, Count> counts_;
};

}  // namespace lynx
