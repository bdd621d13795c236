// SPDX-License-Identifier: Apache-2.0
// A checked request with its prompts tokenized: all that is needed to start generating.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gateway/openai_request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lynx {

// How this server turns text into ids. Immutable; any thread.
struct TextModel {
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template;  // null: the model has none
  size_t max_token_bytes;             // of the longest token
};

TextModel MakeTextModel(const Tokenizer& tokenizer, const ChatTemplate* chat_template);

// Choice c is sample c % num_samples of prompt c / num_samples.
struct GenerationPlan {
  OpenAiRequest request;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::string> echo_texts;  // of each prompt, when echo is asked for
  std::string id;                       // "cmpl-…", "chatcmpl-…"
  int64_t created_s = 0;                // Unix time
  int64_t arrival_ns = 0;
  int max_model_len = 0;  // that held when the request was checked
  uint64_t client = 0;    // see OpenAiService::ClientOf
  uint64_t seed = 0;      // the client's, or a random one

  int num_choices() const { return static_cast<int>(prompts.size()) * request.num_samples; }
  const std::vector<TokenId>& prompt_of(int choice) const {
    return prompts[static_cast<size_t>(choice / request.num_samples)];
  }
  // The engine generates one token that nobody sees (echo with max_tokens 0).
  bool scores_only() const { return request.max_tokens == 0; }
};

// Tokenizes, truncates and checks lengths: CPU-heavy, for a worker thread. `request_id` is that of
// the HTTP request.
MaybeError PlanGeneration(OpenAiRequest request, const TextModel& text, const RequestRules& rules,
                          const std::string& request_id, GenerationPlan* out);

// The request for the engine. Sample i of a prompt uses the seed plus i, so that each sample can be
// had alone; max_tokens is clamped to what the context has left.
Request EngineRequest(const GenerationPlan& plan, int choice);

// The ids of one text or chat prompt, for /tokenize as well.
MaybeError TokenizePrompts(const OpenAiRequest& request, const TextModel& text,
                           std::vector<std::vector<TokenId>>* out);

}  // namespace lynx
