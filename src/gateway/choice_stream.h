// SPDX-License-Identifier: Apache-2.0
// One choice of an answer: engine output in, text that may be shown out.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/json_text.h"
#include "gateway/openai_request.h"
#include "gateway/stop_matcher.h"
#include "text/tokenizer.h"

namespace lynx {

// A token with the place of its text in the choice's text, in characters.
struct PlacedToken {
  TokenOutput token;
  size_t text_offset = 0;
  bool has_logprob = true;  // false: the first token of a prompt
};

// What has become showable: a text and the tokens that it ends. A token whose text is held back
// (half a character, the beginning of a stop string) is held back with it.
struct ChoiceDelta {
  std::string text;
  std::vector<PlacedToken> tokens;
};

// Detokenizes, finds stop strings, counts. One thread.
class ChoiceStream {
 public:
  // `first_offset`: characters before the generated text (echo). `continues_text`: the prompt has
  // text that this one follows.
  ChoiceStream(const OpenAiRequest& request, const Tokenizer& tokenizer, size_t first_offset,
               bool continues_text = true);

  // After the end, more output is ignored. `output.error` is the caller's to look at.
  void Push(const EngineOutput& output);
  // What may be shown and has not been taken yet. At the end: everything that was held.
  ChoiceDelta Take();

  bool finished() const { return finish_reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_reason_; }
  // The stop string or token id that ended it; null for an eos or a length.
  const Json& stop_reason() const { return stop_reason_; }
  int num_tokens() const { return num_tokens_; }

 private:
  struct PendingToken {
    PlacedToken placed;
    size_t end_bytes;  // of its text, counted from the start; kOpen until a piece of text ends it
  };

  void PushToken(const TokenOutput& token, bool is_hidden);
  void AppendText(std::string_view piece, bool may_stop);
  void Finish(FinishReason reason);

  const bool include_stop_;
  const int min_tokens_;
  const std::vector<TokenId> stop_token_ids_;  // sorted
  std::unique_ptr<Detokenizer> detokenizer_;
  StopMatcher stop_matcher_;

  std::string text_;        // not taken yet
  size_t taken_bytes_ = 0;  // before text_
  size_t num_characters_;   // up to the end of text_
  std::deque<PendingToken> pending_;
  int num_tokens_ = 0;
  FinishReason finish_reason_ = FinishReason::kNone;
  Json stop_reason_;
};

// Unicode characters of valid UTF-8.
size_t CountCharacters(std::string_view text);

}  // namespace lynx
