// SPDX-License-Identifier: Apache-2.0
// What `lynx bench serve` asks.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct ServePrompt {
  std::string text;
  int num_tokens = 0;     // about; 0: not known. The server's usage tells the truth
  int output_tokens = 0;  // max_tokens
};

struct RandomPromptOptions {
  int num_prompts = 0;
  int num_distinct = 0;  // only so many different ones, in turn; 0: all differ
  int input_tokens = 1024;
  int output_tokens = 128;
  double range_ratio = 0;  // both lengths are uniform in [n (1 - r), n (1 + r)]; 0 <= r < 1
  uint64_t seed = 0;
};

// Random English words, so common that each is one token (of SmolLM2's vocabulary, which is tested,
// and of others nearly always); a beginning-of-sequence token comes on top where a model has one.
// So prompts need no tokenizer and are the same for every server. The same options give the same
// prompts.
std::vector<ServePrompt> RandomPrompts(const RandomPromptOptions& options);
// The words they are made of.
std::span<const std::string_view> RandomPromptWords();

// The prompts of a file, one at least. Each line is a JSON object: {"prompt": "…",
// "output_tokens": 64}, the latter optional.
absl::StatusOr<std::vector<ServePrompt>> ReadPrompts(const std::string& path,
                                                     int default_output_tokens);

// n prompts of a list from index `first` on, starting again where the list ends.
std::vector<ServePrompt> TakeInTurn(std::span<const ServePrompt> list, size_t first, int n);

}  // namespace lynx
