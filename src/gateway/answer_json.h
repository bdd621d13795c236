// SPDX-License-Identifier: Apache-2.0
// The bodies and events of both generating endpoints, as JSON. Functions of values only.
#pragma once

#include <string>
#include <vector>

#include "gateway/choice_stream.h"
#include "gateway/generation_plan.h"
#include "gateway/json_text.h"

namespace lynx {

// A whole choice (not streamed) or a piece of one.
struct ChoicePart {
  int index = 0;
  std::string text;
  std::vector<PlacedToken> tokens;
  size_t num_echoed = 0;  // of the tokens: those of the prompt, which come first
  FinishReason finish_reason = FinishReason::kNone;
  Json stop_reason;
  std::vector<std::optional<TokenOutput>> prompt_logprobs;  // of the field prompt_logprobs
};

class AnswerJson {
 public:
  AnswerJson(const GenerationPlan& plan, const Tokenizer& tokenizer)
      : plan_(plan), tokenizer_(tokenizer) {}

  // Not streamed.
  Json Whole(const std::vector<ChoicePart>& choices, const Json& usage) const;
  // Streamed. The first chunk of a chat choice names the role; `shows_prompt_ids` adds
  // prompt_token_ids, which chat has there.
  Json RoleChunk(int index) const;
  Json TextChunk(const ChoicePart& part, bool shows_prompt_ids) const;
  Json FinalChunk(const ChoicePart& part, bool shows_prompt_ids) const;
  Json UsageChunk(const Json& usage) const;
  Json DraftChunk(int index, const EngineOutput& output) const;

 private:
  bool is_chat() const { return plan_.request.api == kChatApi; }
  Json Envelope(const char* object) const;
  Json Chunk(Json choice) const;
  Json Choice(const ChoicePart& part) const;  // the fields that every shape shares
  Json Logprobs(const ChoicePart& part) const;
  std::string DraftText(const std::vector<TokenId>& drafts) const;

  const GenerationPlan& plan_;
  const Tokenizer& tokenizer_;
};

struct TokenUsage {
  int64_t prompt = 0, completion = 0, cached = 0;
};
Json UsageJson(const TokenUsage& usage);

// What "lynx": {"timeline": true} shows of one choice; times in ms, nothing of what did not happen.
Json TimelineJson(const Timeline& timeline, double ttft_ms, double e2e_ms);

// "data: {…}\n\n".
std::string SseEvent(const Json& json);
inline constexpr char kSseDone[] = "data: [DONE]\n\n";

}  // namespace lynx
