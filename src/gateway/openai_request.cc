// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai_request.h"

#include <algorithm>

#include "gateway/request_fields.h"

namespace lynx {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr int64_t kDefaultCompletionTokens = 16;

OpenAiRequest Defaults(Api api, const RequestRules& rules) {
  OpenAiRequest request{.api = api, .model = rules.served_model_names.front()};
  request.add_special_tokens = (api & (kCompletionsApi | kTokenizeTextApi)) != 0;
  request.chat.kwargs_json = "{}";
  request.chat.tools_json = "null";
  if (api == kCompletionsApi) request.max_tokens = kDefaultCompletionTokens;
  const SamplingDefaults& defaults = rules.sampling_defaults;
  SamplingParams& sampling = request.sampling;
  sampling.temperature = defaults.temperature.value_or(sampling.temperature);
  sampling.top_p = defaults.top_p.value_or(sampling.top_p);
  sampling.top_k = defaults.top_k.value_or(sampling.top_k);
  sampling.min_p = defaults.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(sampling.repetition_penalty);
  return request;
}

bool IsSet(const Json& body, const char* name) {
  const auto it = body.find(name);
  return it != body.end() && !it->is_null();
}

MaybeError CheckText(const Json& body, const RequestRules& rules, OpenAiRequest* request) {
  const bool is_chat = (request->api & (kChatApi | kTokenizeChatApi)) != 0;
  if (request->api == kDetokenizeApi && request->prompts.empty()) {
    return InvalidValue("tokens", "tokens must be a list of token ids");
  }
  if (!is_chat) {
    if (request->prompts.empty()) {
      return InvalidValue("prompt",
                          "Either prompt or prompt_embeds must be provided and non-empty.");
    }
    const int64_t num_choices =
        static_cast<int64_t>(request->prompts.size()) * request->num_samples;
    if (num_choices > rules.limits.max_num_choices) {
      return InvalidValue("n", StrCat("prompts times n must be at most ",
                                      rules.limits.max_num_choices, ", got ", num_choices));
    }
    return std::nullopt;
  }
  if (request->chat.messages_json.empty()) {
    return InvalidValue("messages", "messages is required");
  }
  ChatTemplateInput& chat = request->chat;
  if (chat.continue_final_message) {
    if (chat.add_generation_prompt && IsSet(body, "add_generation_prompt")) {
      return InvalidValue("continue_final_message",
                          "continue_final_message and "
                          "add_generation_prompt exclude each other");
    }
    chat.add_generation_prompt = false;
  }
  if (request->api == kChatApi && chat.tools_json != "null" && !IsSet(body, "tool_choice")) {
    return UnsupportedParameter("tools",
                                "tools need `tool_choice: \"none\"`: \"auto\" is not "
                                "supported, because there is no tool parser");
  }
  if (chat.add_generation_prompt) {
    if (request->response_role != "assistant") request->last_message.clear();
    request->response_role = "assistant";
  }
  return std::nullopt;
}

MaybeError CheckLengths(OpenAiRequest* request) {
  if (request->max_tokens == 0 && !request->echo) {
    return InvalidValue("max_tokens", "max_tokens must be at least 1, or 0 together with echo");
  }
  const int min_tokens = request->sampling.min_tokens;
  if (request->max_tokens && min_tokens > *request->max_tokens) {
    return InvalidValue("min_tokens", StrCat("min_tokens must be at most max_tokens (",
                                             *request->max_tokens, "), got ", min_tokens));
  }
  return std::nullopt;
}

MaybeError CheckSampling(const Json& body, OpenAiRequest* request) {
  SamplingParams& sampling = request->sampling;
  if (sampling.temperature < kGreedyTemperature) {
    sampling.temperature = 0;
    sampling.top_p = 1;
    sampling.top_k = 0;
    sampling.min_p = 0;
    if (request->num_samples > 1) {
      return InvalidValue(
          "n", StrCat("n must be 1 when using greedy sampling, got ", request->num_samples));
    }
  }
  if (request->api == kCompletionsApi && IsSet(body, "best_of") &&
      body["best_of"] != request->num_samples) {
    return UnsupportedParameter("best_of", "best_of is only supported when it equals n");
  }
  return std::nullopt;
}

void AddEosIds(const RequestRules& rules, OpenAiRequest* request) {
  std::vector<TokenId>& ids = request->sampling.stop_token_ids;
  if (!request->ignore_eos) ids.insert(ids.end(), rules.eos_ids.begin(), rules.eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

void SetEngineLogprobs(OpenAiRequest* request) {
  SamplingParams& sampling = request->sampling;
  sampling.num_logprobs = request->num_logprobs.value_or(-1);
  sampling.num_prompt_logprobs = request->num_prompt_logprobs.value_or(-1);
  if (request->api == kCompletionsApi && request->echo) {
    sampling.num_prompt_logprobs = std::max(sampling.num_prompt_logprobs, sampling.num_logprobs);
  }
}

}  // namespace

MaybeError ParseOpenAiRequest(Api api, const RequestBody& body, const RequestRules& rules,
                              OpenAiRequest* out) {
  OpenAiRequest request = Defaults(api, rules);
  FieldTarget target{.rules = rules, .body_text = body.text, .request = request};
  for (const RequestField& field : RequestFields()) {
    if ((field.apis & api) != 0) LYNX_RETURN_IF_REFUSED(ApplyField(field, body.json, target));
  }
  LYNX_RETURN_IF_REFUSED(RefuseUnsupported(api, body.json));
  LYNX_RETURN_IF_REFUSED(CheckText(body.json, rules, &request));
  LYNX_RETURN_IF_REFUSED(CheckLengths(&request));
  LYNX_RETURN_IF_REFUSED(CheckSampling(body.json, &request));
  AddEosIds(rules, &request);
  SetEngineLogprobs(&request);
  *out = std::move(request);
  return std::nullopt;
}

}  // namespace lynx
