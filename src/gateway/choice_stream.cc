// SPDX-License-Identifier: Apache-2.0
#include "gateway/choice_stream.h"

#include <algorithm>
#include <limits>

namespace lynx {
namespace {

constexpr size_t kOpen = std::numeric_limits<size_t>::max();

}  // namespace

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

ChoiceStream::ChoiceStream(const OpenAiRequest& request, const Tokenizer& tokenizer,
                           size_t first_offset, bool continues_text)
    : include_stop_(request.include_stop_in_output),
      min_tokens_(request.sampling.min_tokens),
      stop_token_ids_(request.sampling.stop_token_ids),
      detokenizer_(Detokenizer::Create(tokenizer, request.skip_special_tokens, continues_text)),
      stop_matcher_(request.stops),
      num_characters_(first_offset) {}

void ChoiceStream::Push(const EngineOutput& output) {
  const bool ended_by_token = output.finish_reason == FinishReason::kStop;
  for (size_t i = 0; i < output.tokens.size() && !finished(); ++i) {
    const TokenOutput& token = output.tokens[i];
    const bool is_stop_token =
        ended_by_token && i + 1 == output.tokens.size() &&
        std::binary_search(stop_token_ids_.begin(), stop_token_ids_.end(), token.id);
    PushToken(token, is_stop_token && !include_stop_);
  }
  if (finished() || output.finish_reason == FinishReason::kNone) return;
  if (output.stop_token) stop_reason_ = *output.stop_token;
  Finish(output.finish_reason);
}

void ChoiceStream::PushToken(const TokenOutput& token, bool is_hidden) {
  ++num_tokens_;
  pending_.push_back(
      {.placed = {.token = token, .text_offset = num_characters_}, .end_bytes = kOpen});
  if (!is_hidden) AppendText(detokenizer_->Push(token.id), num_tokens_ > min_tokens_);
}

void ChoiceStream::AppendText(std::string_view piece, bool may_stop) {
  if (piece.empty()) return;
  StopMatcher::Match match;
  if (may_stop) {
    match = stop_matcher_.Push(piece);
  } else {
    stop_matcher_.Skip();
  }
  num_characters_ += CountCharacters(piece);
  text_.append(piece.substr(0, match.found ? match.end : piece.size()));
  for (auto it = pending_.rbegin(); it != pending_.rend() && it->end_bytes == kOpen; ++it) {
    it->end_bytes = taken_bytes_ + text_.size();
  }
  if (!match.found) return;
  const std::string& stop = stop_matcher_.stop(match.index);
  if (!include_stop_) text_.resize(text_.size() - stop.size());
  stop_reason_ = stop;
  finish_reason_ = FinishReason::kStop;
}

void ChoiceStream::Finish(FinishReason reason) {
  AppendText(detokenizer_->Flush(), num_tokens_ > min_tokens_);
  if (!finished()) finish_reason_ = reason;
}

ChoiceDelta ChoiceStream::Take() {
  ChoiceDelta delta;
  const size_t held = finished() ? 0 : stop_matcher_.num_held_bytes();
  const size_t num_bytes = text_.size() - held;
  delta.text = text_.substr(0, num_bytes);
  text_.erase(0, num_bytes);
  taken_bytes_ += num_bytes;
  while (!pending_.empty() && (finished() || pending_.front().end_bytes <= taken_bytes_)) {
    delta.tokens.push_back(std::move(pending_.front().placed));
    pending_.pop_front();
  }
  return delta;
}

}  // namespace lynx
