// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/questions.h"

#include <utility>

#include "bench/accuracy/prompts.h"

namespace lynx {
namespace {

constexpr int kLoadTokens = 8192;

HandoffPrompt PromptOf(const AccuracyPrompt& from, size_t index) {
  HandoffPrompt prompt{.tokens = from.tokens, .needle = ""};
  if (index % 2 == 0) return prompt;
  const NeedleQuestion& needle = from.needles[index / 2 % kNumNeedles];
  prompt.tokens.resize(from.num_context);
  prompt.tokens.insert(prompt.tokens.end(), needle.tail.begin(), needle.tail.end());
  prompt.needle = needle.code;
  return prompt;
}

}  // namespace

absl::StatusOr<HandoffQuestions> MakeHandoffQuestions(const BenchHandoffOptions& options,
                                                      const std::vector<int>& prompt_tokens) {
  LYNX_ASSIGN_OR_RETURN(const PromptSource source,
                        OpenPromptSource(options.corpus, options.config.model));
  HandoffQuestions questions;
  for (const int num_tokens : prompt_tokens) {
    LYNX_ASSIGN_OR_RETURN(const auto prompts,
                          BuildAccuracyPrompts(source, num_tokens, options.repeat));
    std::vector<HandoffQuestion>& of_length = questions.of_length[num_tokens];
    for (size_t i = 0; i < prompts.size(); ++i) {
      of_length.push_back({.prompt = PromptOf(prompts[i], i), .reference = {}});
    }
  }
  LYNX_ASSIGN_OR_RETURN(auto load, BuildAccuracyPrompts(source, kLoadTokens, 1));
  questions.load_tokens = std::move(load[0].tokens);
  return questions;
}

}  // namespace lynx
