// SPDX-License-Identifier: Apache-2.0
// What a client asks of an engine and what an engine answers. Value types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lynx/lifetime.h"
#include "lynx/status.h"
#include "lynx/types.h"

namespace lynx {

// Defaults are neutral; the meaning and order of the filters is vLLM's V1 sampler.
struct SamplingParams {
  float temperature = 1.0f;  // below 1e-5: greedy
  float top_p = 1.0f;
  int top_k = 0;  // <= 0: off
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::vector<TokenId> allowed_token_ids;  // empty: all
  std::vector<TokenId> stop_token_ids;     // eos ids included, unless ignore_eos
  int min_tokens = 0;
  int max_tokens = 16;
  int num_logprobs = -1;         // -1: none; n: the chosen token's and the n best
  int num_prompt_logprobs = -1;  // same for every prompt token
};

struct Request {
  std::string id;
  std::vector<TokenId> prompt_ids;
  // Tokens that an earlier try of this request has already emitted (fail-over): they follow the
  // prompt, count as output for penalties and limits, and are not emitted again.
  std::vector<TokenId> emitted_ids;
  SamplingParams sampling;
  std::string cache_salt;
  int priority = 0;     // lower = earlier
  uint64_t client = 0;  // who asks, for fair shares
  bool show_drafts = false;
  std::optional<VerifyMode> verify;  // absent: the engine's
  int64_t arrival_ns = 0;            // monotonic clock of the process that received it; 0: now
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0;
  int rank = 0;  // 1 = most likely; 0 = not computed
};

struct TokenOutput {
  TokenId id = 0;
  float logprob = 0;
  int rank = 0;
  std::vector<TokenLogprob> top;  // num_logprobs entries, best first
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };

// What the engine reports of one request, in order. Every sink call is made on the engine thread
// and must not block.
struct EngineOutput {
  std::vector<TokenOutput> tokens;  // verified, final
  std::vector<TokenId> drafts;      // provisional, only with show_drafts
  int num_revoked_drafts = 0;       // of the drafts reported before, the last n were wrong
  std::vector<std::optional<TokenOutput>> prompt_logprobs;  // once; [0] is null
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<TokenId> stop_token;  // the stop token that ended it, if not an eos
  // Not OK: the request has failed, nothing follows. kResourceExhausted: the queue was full;
  // kDeadlineExceeded: waited too long in it.
  absl::Status error;
  int num_cached_tokens = 0;  // with the first token: prefix hits where it was prefilled
  Timeline timeline;          // with finish_reason
  bool finished() const { return finish_reason != FinishReason::kNone || !error.ok(); }
};

}  // namespace lynx
