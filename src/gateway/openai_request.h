// SPDX-License-Identifier: Apache-2.0
// A request body as a value: every field checked, defaults filled in, nothing tokenized yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/gateway.h"
#include "gateway/json_text.h"
#include "lynx/request.h"
#include "text/chat_template.h"

namespace lynx {

// Which body is being read; bits, because a field may belong to several.
enum Api : unsigned {
  kCompletionsApi = 1,
  kChatApi = 2,
  kTokenizeTextApi = 4,
  kTokenizeChatApi = 8,
  kDetokenizeApi = 16,
};

// What the server allows and assumes.
struct RequestRules {
  GatewayLimits limits;
  SamplingDefaults sampling_defaults;
  std::vector<std::string> served_model_names;  // not empty; the first is the default
  std::vector<TokenId> eos_ids;
  int vocab_size = 0;
  int max_model_len = 0;
  bool accepts_priority = false;
};

struct OpenAiRequest {
  struct Prompt {
    std::optional<std::string> text;
    std::vector<TokenId> ids;  // when there is no text
  };

  Api api = kCompletionsApi;
  std::string model;  // the served name that the client used
  std::string id;     // request_id of the body, or empty

  std::vector<Prompt> prompts;  // completions, tokenize, detokenize
  ChatTemplateInput chat;       // chat, tokenize
  std::string response_role = "assistant";
  std::string last_message;  // its text, for echo in chat
  bool add_special_tokens = true;
  std::optional<int64_t> truncate_prompt_tokens;  // −1: to what the model can take
  bool truncation_keeps_end = true;

  // stop_token_ids include the eos ids unless ignore_eos; seed and max_tokens are set when the
  // prompt's length is known.
  SamplingParams sampling;
  std::optional<int64_t> seed;
  std::optional<int64_t> max_tokens;
  int num_samples = 1;
  bool ignore_eos = false;
  std::vector<std::string> stops;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;

  bool echo = false;
  std::optional<int> num_logprobs;         // top entries asked for; empty: no logprobs
  std::optional<int> num_prompt_logprobs;  // of the field prompt_logprobs
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  bool return_token_strs = false;  // tokenize

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool show_timeline = false;
  bool show_drafts = false;
  std::optional<VerifyMode> verify;

  std::string cache_salt;
  int priority = 0;
  std::string user;
};

// Errors are 400 (404 for the model) and name the field.
MaybeError ParseOpenAiRequest(Api api, const RequestBody& body, const RequestRules& rules,
                              OpenAiRequest* out);

}  // namespace lynx
