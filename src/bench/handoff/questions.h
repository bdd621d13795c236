// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "bench/handoff/handoff.h"
#include "bench/handoff/sample.h"

namespace lynx {

struct HandoffQuestion {
  HandoffPrompt prompt;
  HandoffSample reference;  // the BF16 answer, once it was given
};

struct HandoffQuestions {
  std::map<int, std::vector<HandoffQuestion>> of_length;  // by prompt tokens
  std::vector<TokenId> load_tokens;  // from which a busy prefill side's prompts come
};

// Prompts of the corpus, `repeat` of each length; every other one asks for a needle.
absl::StatusOr<HandoffQuestions> MakeHandoffQuestions(const BenchHandoffOptions& options,
                                                      const std::vector<int>& prompt_tokens);

}  // namespace lynx
