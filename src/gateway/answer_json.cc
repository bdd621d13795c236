// SPDX-License-Identifier: Apache-2.0
#include "gateway/answer_json.h"

#include <array>
#include <cmath>

#include "core/timeline.h"
#include "gateway/logprob_json.h"

namespace lynx {
namespace {

constexpr std::array<std::pair<Event, const char*>, 11> kEventNames = {{
    {Event::kScheduled, "scheduled"},
    {Event::kPrefillStarted, "prefill_started"},
    {Event::kFirstToken, "first_token"},
    {Event::kAnchorLanded, "anchor_landed"},
    {Event::kFirstDraft, "first_draft"},
    {Event::kSourceVerified, "source_verified"},
    {Event::kResidualLanded, "residual_landed"},
    {Event::kTargetLanded, "target_landed"},
    {Event::kRefined, "refined"},
    {Event::kVerified, "verified"},
    {Event::kFinished, "finished"},
}};
constexpr std::array kStageNames = {"anchor", "residual", "exact"};

Json FinishReasonJson(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return nullptr;
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return nullptr;
}

// Of the answer, without an echoed prompt.
Json TokenIds(const ChoicePart& part) {
  Json ids = Json::array();
  for (size_t i = part.num_echoed; i < part.tokens.size(); ++i) {
    ids.push_back(part.tokens[i].token.id);
  }
  return ids;
}

// Microseconds are enough and keep the text short.
double Rounded(double ms) { return std::round(ms * 1000) / 1000; }
template <typename T>
double Ms(T ns) {
  return Rounded(static_cast<double>(ns) / 1e6);
}

}  // namespace

Json AnswerJson::Envelope(const char* object) const {
  return {{"id", plan_.id},
          {"object", object},
          {"created", plan_.created_s},
          {"model", plan_.request.model},
          {"system_fingerprint", nullptr}};
}

Json AnswerJson::Logprobs(const ChoicePart& part) const {
  const OpenAiRequest& request = plan_.request;
  if (!request.num_logprobs || part.tokens.empty()) return nullptr;
  const LogprobStyle style{.num_top = *request.num_logprobs,
                           .tokens_as_ids = request.return_tokens_as_token_ids};
  return is_chat() ? ChatLogprobs(part.tokens, style, tokenizer_)
                   : CompletionLogprobs(part.tokens, style, tokenizer_);
}

Json AnswerJson::Choice(const ChoicePart& part) const {
  Json choice = {{"index", part.index},
                 {"logprobs", Logprobs(part)},
                 {"finish_reason", FinishReasonJson(part.finish_reason)},
                 {"stop_reason", part.stop_reason}};
  if (plan_.request.return_token_ids) choice["token_ids"] = TokenIds(part);
  return choice;
}

Json AnswerJson::Whole(const std::vector<ChoicePart>& choices, const Json& usage) const {
  Json answer = Envelope(is_chat() ? "chat.completion" : "text_completion");
  answer["service_tier"] = nullptr;
  answer["kv_transfer_params"] = nullptr;
  answer["usage"] = usage;
  Json& list = answer["choices"] = Json::array();
  for (const ChoicePart& part : choices) {
    Json choice = Choice(part);
    const std::optional<int> num_top = plan_.request.num_prompt_logprobs;
    Json prompt_logprobs =
        num_top ? PromptLogprobs(part.prompt_logprobs, *num_top, tokenizer_) : Json(nullptr);
    // Chat has one prompt, so what belongs to it stands beside the choices.
    Json& prompt_place = is_chat() ? answer : choice;
    prompt_place["prompt_logprobs"] = std::move(prompt_logprobs);
    if (plan_.request.return_token_ids) {
      prompt_place["prompt_token_ids"] = plan_.prompt_of(part.index);
    }
    if (is_chat()) {
      choice["message"] = {
          {"role", plan_.request.response_role}, {"content", part.text}, {"refusal", nullptr}};
    } else {
      choice["text"] = part.text;
    }
    list.push_back(std::move(choice));
  }
  return answer;
}

Json AnswerJson::Chunk(Json choice) const {
  Json chunk = Envelope(is_chat() ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(choice)});
  if (plan_.request.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

Json AnswerJson::RoleChunk(int index) const {
  Json choice = {{"index", index},
                 {"delta", {{"role", plan_.request.response_role}, {"content", ""}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr}};
  Json chunk = Chunk(std::move(choice));
  if (plan_.request.return_token_ids) chunk["prompt_token_ids"] = plan_.prompt_of(index);
  return chunk;
}

Json AnswerJson::TextChunk(const ChoicePart& part, bool shows_prompt_ids) const {
  Json choice = Choice(part);
  if (is_chat()) {
    choice["delta"] = {{"content", part.text}};
  } else {
    choice["text"] = part.text;
    if (shows_prompt_ids) choice["prompt_token_ids"] = plan_.prompt_of(part.index);
  }
  return Chunk(std::move(choice));
}

Json AnswerJson::FinalChunk(const ChoicePart& part, bool shows_prompt_ids) const {
  Json choice = Choice(part);
  if (is_chat()) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
    if (shows_prompt_ids) choice["prompt_token_ids"] = plan_.prompt_of(part.index);
  }
  return Chunk(std::move(choice));
}

Json AnswerJson::UsageChunk(const Json& usage) const {
  Json chunk = Envelope(is_chat() ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array();
  chunk["usage"] = usage;
  return chunk;
}

std::string AnswerJson::DraftText(const std::vector<TokenId>& drafts) const {
  const auto detokenizer = Detokenizer::Create(tokenizer_, plan_.request.skip_special_tokens,
                                               /*continues_text=*/true);
  std::string text;
  for (TokenId id : drafts) text += detokenizer->Push(id);
  return text + detokenizer->Flush();
}

Json AnswerJson::DraftChunk(int index, const EngineOutput& output) const {
  Json chunk = Envelope("lynx.draft");
  chunk["choices"] = Json::array();
  chunk["lynx"] = {{"index", index},
                   {"token_ids", output.drafts},
                   {"text", DraftText(output.drafts)},
                   {"num_revoked", output.num_revoked_drafts},
                   {"provisional", true}};
  return chunk;
}

Json UsageJson(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}}};
}

Json TimelineJson(const Timeline& timeline, double ttft_ms, double e2e_ms) {
  Json events = Json::object(), stage_bytes = Json::object();
  const auto since_arrival = [&](const std::vector<int64_t>& times_ns) {
    Json list = Json::array();
    for (int64_t ns : times_ns) list.push_back(Ms(ns - timeline.at(Event::kArrived)));
    return list;
  };
  for (const auto& [event, name] : kEventNames) {
    if (const auto ns = Between(timeline, Event::kArrived, event)) events[name] = Ms(*ns);
  }
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    stage_bytes[kStageNames[i]] =
        i < timeline.stage_bytes.size() ? timeline.stage_bytes[i] : int64_t{0};
  }
  Json json = {{"events_ms", std::move(events)},
               {"drafted", timeline.num_drafted},
               {"accepted", timeline.num_accepted},
               {"self_drafted", timeline.num_self_drafted},
               {"self_accepted", timeline.num_self_accepted},
               {"handoffs", timeline.num_handoffs},
               {"stage_bytes", std::move(stage_bytes)},
               {"token_ms", since_arrival(timeline.token_ns)},
               {"provisional_ms", since_arrival(timeline.provisional_ns)},
               {"verify", Name(timeline.verify)},
               {"verify_rounds", timeline.num_verify_rounds},
               {"verified_by_source", timeline.num_source_tokens},
               {"ttft_ms", Rounded(ttft_ms)},
               {"e2e_ms", Rounded(e2e_ms)}};
  if (timeline.estimated_source_ns > 0) {
    json["verify_estimate_ms"] = {{"source", Ms(timeline.estimated_source_ns)}};
    if (timeline.estimated_residual_ns > 0) {
      json["verify_estimate_ms"]["residual"] = Ms(timeline.estimated_residual_ns);
    }
  }
  if (!timeline.anchor.empty()) json["anchor"] = timeline.anchor;
  if (timeline.estimated_anchor_ns > 0) {
    json["anchor_estimate_ms"] = Ms(timeline.estimated_anchor_ns);
  }
  if (const auto ns = TimeToSecondToken(timeline)) json["ttst_ms"] = Ms(*ns);
  if (const auto ns = TransferTime(timeline)) json["transfer_ms"] = Ms(*ns);
  if (const auto ns = TimePerOutputToken(timeline)) json["tpot_ms"] = Ms(*ns);
  if (const auto ns = LongestStall(timeline)) json["longest_stall_ms"] = Ms(*ns);
  if (const auto rate = AcceptanceRate(timeline)) json["acceptance_rate"] = Rounded(*rate);
  return json;
}

std::string SseEvent(const Json& json) { return StrCat("data: ", DumpJson(json), "\n\n"); }

}  // namespace lynx
