// SPDX-License-Identifier: Apache-2.0
// The three shapes in which OpenAI's and vLLM's APIs show log-probabilities.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "gateway/choice_stream.h"
#include "gateway/json_text.h"
#include "text/tokenizer.h"

namespace lynx {

struct LogprobStyle {
  int num_top = 0;
  bool tokens_as_ids = false;  // "token_id:42" instead of text
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}, four lists of equal length. The
// chosen token is always among its top_logprobs, with the same number.
Json CompletionLogprobs(std::span<const PlacedToken> tokens, const LogprobStyle& style,
                        const Tokenizer& tokenizer);

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}]}.
Json ChatLogprobs(std::span<const PlacedToken> tokens, const LogprobStyle& style,
                  const Tokenizer& tokenizer);

// [null, {"id": {"logprob", "rank", "decoded_token"}}, …].
Json PromptLogprobs(std::span<const std::optional<TokenOutput>> tokens, int num_top,
                    const Tokenizer& tokenizer);

// A prompt with its log-probabilities, placed in the echoed text. `prompt_logprobs` may be shorter
// than the prompt (not computed).
std::vector<PlacedToken> PlacePrompt(std::span<const TokenId> prompt,
                                     std::span<const std::optional<TokenOutput>> prompt_logprobs,
                                     std::string_view echo_text, const Tokenizer& tokenizer);

}  // namespace lynx
