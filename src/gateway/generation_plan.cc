// SPDX-License-Identifier: Apache-2.0
#include "gateway/generation_plan.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "gateway/http_message.h"
#include "text/chat_prompt.h"

namespace lynx {
namespace {

// Normalization may shorten a text before it meets the vocabulary, hardly ever by this much.
constexpr size_t kMaxShrink = 4;
// Of one request: about two seconds of a worker's time.
constexpr size_t kMaxTokenizedBytes = 8u << 20;

const char* PromptParam(const OpenAiRequest& request) {
  return (request.api & (kChatApi | kTokenizeChatApi)) != 0 ? "messages" : "prompt";
}

ApiError ContextLengthExceeded(const OpenAiRequest& request, const RequestRules& rules,
                               const std::string& num_prompt_tokens) {
  ApiError error = InvalidValue(
      PromptParam(request),
      StrCat("This model's maximum context length is ", rules.max_model_len,
             " tokens. However, your prompt contains ", num_prompt_tokens,
             " input tokens, which leaves no room for output. Please reduce the length of "
             "the prompt."));
  error.code = "context_length_exceeded";
  return error;
}

// Refuses by size alone what cannot fit, before time is spent on it.
MaybeError CheckTextBytes(const OpenAiRequest& request, const TextModel& text,
                          const RequestRules& rules) {
  if (request.truncate_prompt_tokens) return std::nullopt;
  const size_t max_bytes =
      kMaxShrink * text.max_token_bytes * static_cast<size_t>(rules.max_model_len);
  size_t longest = request.chat.messages_json.size();
  for (const auto& prompt : request.prompts) {
    if (prompt.text) longest = std::max(longest, prompt.text->size());
  }
  if (longest <= max_bytes) return std::nullopt;
  return ContextLengthExceeded(request, rules,
                               StrCat("at least ", longest / (kMaxShrink * text.max_token_bytes)));
}

size_t NumTextBytes(const OpenAiRequest& request) {
  const ChatTemplateInput& chat = request.chat;
  if (request.prompts.empty()) {
    return chat.messages_json.size() + chat.tools_json.size() + chat.kwargs_json.size();
  }
  size_t sum = 0;
  for (const OpenAiRequest::Prompt& prompt : request.prompts) {
    if (prompt.text) sum += prompt.text->size();
  }
  return sum;
}

MaybeError TokenizeChat(const OpenAiRequest& request, const TextModel& text,
                        std::vector<TokenId>* out) {
  if (text.chat_template == nullptr) {
    ApiError error = InvalidValue("messages",
                                  "this model has no chat template; use /v1/completions, or start "
                                  "the server with --chat-template");
    error.code = "template_error";
    return error;
  }
  auto ids =
      EncodeChat(*text.chat_template, text.tokenizer, request.chat, request.add_special_tokens);
  if (!ids.ok()) {
    ApiError error = FromStatus(ids.status());
    if (error.status == 400) {
      error.param = "messages";
      error.code = "template_error";
    }
    return error;
  }
  *out = *std::move(ids);
  return std::nullopt;
}

void Truncate(const OpenAiRequest& request, int max_model_len, std::vector<TokenId>* ids) {
  if (!request.truncate_prompt_tokens) return;
  int64_t keep = *request.truncate_prompt_tokens;
  if (keep < 0) {
    const int64_t room = std::max<int64_t>(1, request.max_tokens.value_or(1));
    keep = std::max<int64_t>(1, max_model_len - room);
  }
  const auto excess = static_cast<int64_t>(ids->size()) - keep;
  if (excess <= 0) return;
  if (request.truncation_keeps_end) {
    ids->erase(ids->begin(), ids->begin() + excess);
  } else {
    ids->resize(static_cast<size_t>(keep));
  }
}

// What echo shows of prompt p: the client's own words, unless they were cut.
std::string EchoText(const OpenAiRequest& request, const TextModel& text, size_t p,
                     const std::vector<TokenId>& ids, bool was_cut) {
  if (request.api == kChatApi) return request.last_message;
  const auto& prompt = request.prompts[p].text;
  return prompt && !was_cut ? *prompt : text.tokenizer.Decode(ids, false);
}

uint64_t RandomSeed() {
  std::random_device entropy;
  return (uint64_t{entropy()} << 32) | entropy();
}

}  // namespace

TextModel MakeTextModel(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  }
  return {.tokenizer = tokenizer, .chat_template = chat_template, .max_token_bytes = longest};
}

MaybeError TokenizePrompts(const OpenAiRequest& request, const TextModel& text,
                           std::vector<std::vector<TokenId>>* out) {
  const size_t num_bytes = NumTextBytes(request);
  if (num_bytes > kMaxTokenizedBytes) {
    return InvalidValue(PromptParam(request),
                        StrCat(num_bytes, " bytes of text are more than the ", kMaxTokenizedBytes,
                               " that one request may have"));
  }
  if (request.prompts.empty()) return TokenizeChat(request, text, &out->emplace_back());
  for (const OpenAiRequest::Prompt& prompt : request.prompts) {
    out->push_back(prompt.text
                       ? text.tokenizer.Encode(*prompt.text,
                                               {.add_special_tokens = request.add_special_tokens})
                       : prompt.ids);
  }
  return std::nullopt;
}

MaybeError PlanGeneration(OpenAiRequest request, const TextModel& text, const RequestRules& rules,
                          const std::string& request_id, GenerationPlan* out) {
  LYNX_RETURN_IF_REFUSED(CheckTextBytes(request, text, rules));
  LYNX_RETURN_IF_REFUSED(TokenizePrompts(request, text, &out->prompts));
  for (size_t p = 0; p < out->prompts.size(); ++p) {
    std::vector<TokenId>& ids = out->prompts[p];
    const size_t num_tokens = ids.size();
    Truncate(request, rules.max_model_len, &ids);
    if (ids.empty()) {
      return InvalidValue(PromptParam(request), "the prompt holds no token");
    }
    if (ids.size() >= static_cast<size_t>(rules.max_model_len)) {
      return ContextLengthExceeded(request, rules, std::to_string(ids.size()));
    }
    if (request.echo) {
      out->echo_texts.push_back(EchoText(request, text, p, ids, ids.size() < num_tokens));
    }
  }
  out->id = StrCat(request.api == kChatApi ? "chatcmpl-" : "cmpl-",
                   request.id.empty() ? request_id : request.id);
  out->max_model_len = rules.max_model_len;
  out->created_s = std::time(nullptr);
  out->seed = request.seed ? static_cast<uint64_t>(*request.seed) : RandomSeed();
  out->request = std::move(request);
  return std::nullopt;
}

Request EngineRequest(const GenerationPlan& plan, int choice) {
  const OpenAiRequest& asked = plan.request;
  Request request{.id = StrCat(plan.id, "-", choice, "-", RandomHexId().substr(0, 8)),
                  .prompt_ids = plan.prompt_of(choice),
                  .sampling = asked.sampling,
                  .cache_salt = asked.cache_salt,
                  .priority = asked.priority,
                  .client = plan.client,
                  .show_drafts = asked.show_drafts,
                  .verify = asked.verify,
                  .arrival_ns = plan.arrival_ns};
  const int64_t room = plan.max_model_len - static_cast<int64_t>(request.prompt_ids.size());
  SamplingParams& sampling = request.sampling;
  sampling.seed = plan.seed + static_cast<uint64_t>(choice % asked.num_samples);
  sampling.max_tokens =
      static_cast<int>(std::clamp<int64_t>(asked.max_tokens.value_or(room), 1, room));
  sampling.min_tokens = std::min(sampling.min_tokens, sampling.max_tokens);
  return request;
}

}  // namespace lynx
