// SPDX-License-Identifier: Apache-2.0
#include "gateway/openai_service.h"

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "gateway/openai_request.h"

namespace lynx {
namespace {

RequestRules MakeRules(const GatewayOptions& options, const ModelCard& card) {
  RequestRules rules{
      .limits = options.limits,
      .sampling_defaults = options.sampling_defaults,
      .served_model_names = options.served_model_names,
      .eos_ids = card.eos_ids,
      .vocab_size = card.vocab_size,
      .max_model_len = options.max_model_len > 0 ? options.max_model_len : card.max_model_len,
      .accepts_priority = options.accepts_priority};
  if (rules.served_model_names.empty()) rules.served_model_names = {card.name};
  return rules;
}

// Takes the same time wherever the keys differ.
bool SameKey(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

std::optional<std::string> BearerKey(const HttpRequest& request) {
  if (!absl::StartsWithIgnoreCase(request.authorization, "bearer ")) return std::nullopt;
  std::string key = request.authorization.substr(7);
  absl::StripAsciiWhitespace(&key);
  return key;
}

// What a Hugging Face tokenizer_config.json says, with the chat template that is in use.
std::string TokenizerConfig(const GatewayOptions& options, const Tokenizer& tokenizer) {
  Json config = Json::parse(options.tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    auto token = [](TokenId id, const std::string& text) { return id < 0 ? Json() : Json(text); };
    config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"bos_token", token(tokenizer.bos_id(), tokenizer.bos_token())},
              {"eos_token", token(tokenizer.eos_id(), tokenizer.eos_token())},
              {"pad_token", nullptr},
              {"chat_template", nullptr}};
  }
  if (!options.chat_template_source.empty()) {
    config["chat_template"] = options.chat_template_source;
  }
  return DumpJson(config);
}

bool IsGenerating(Route route) {
  return route == Route::kCompletions || route == Route::kChatCompletions ||
         route == Route::kHealthGenerate;
}

}  // namespace

OpenAiService::OpenAiService(const GatewayOptions& options, Generator& generator,
                             const Tokenizer& tokenizer, const ChatTemplate* chat_template,
                             const ModelCard& card)
    : api_keys_(options.api_keys),
      tokenizer_config_(TokenizerConfig(options, tokenizer)),
      created_s_(std::time(nullptr)),
      rules_(MakeRules(options, card)),
      generator_(generator),
      text_(MakeTextModel(tokenizer, chat_template)),
      metrics_(GatewayMetrics::Create(rules_.served_model_names.front(), rules_.max_model_len,
                                      options.vllm_metric_names)) {}

MaybeError OpenAiService::Admit(const RouteMatch& match, const HttpRequest& request) const {
  if (match.needs_key) LYNX_RETURN_IF_REFUSED(CheckKey(request));
  if (match.route == Route::kNone) {
    return HttpError(404, StrCat("unknown path ", request.path));
  }
  if (!match.is_method_allowed) {
    return HttpError(
        405, StrCat(match.pattern, " does not take ", request.method, ", only ", match.allow));
  }
  if (match.takes_json) {
    const std::string media_type = request.content_type.substr(0, request.content_type.find(';'));
    if (!absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(media_type), "application/json")) {
      return HttpError(
          415, StrCat("Content-Type must be application/json, not \"", request.content_type, "\""));
    }
  }
  if (IsGenerating(match.route)) return CheckServing();
  return std::nullopt;
}

MaybeError OpenAiService::CheckKey(const HttpRequest& request) const {
  if (api_keys_.empty()) return std::nullopt;
  if (const auto given = BearerKey(request)) {
    bool is_known = false;
    for (const std::string& key : api_keys_) is_known |= SameKey(*given, key);
    if (is_known) return std::nullopt;
  }
  ApiError error = HttpError(401, "Incorrect or missing API key: send `Authorization: Bearer KEY`");
  error.code = "invalid_api_key";
  return error;
}

uint64_t OpenAiService::ClientOf(const HttpRequest& request, const std::string& user) const {
  if (api_keys_.size() > 1) {
    const auto given = BearerKey(request);
    return given ? std::hash<std::string>()(*given) : 0;
  }
  return user.empty() ? 0 : std::hash<std::string>()(user);
}

MaybeError OpenAiService::CheckProgress() const {
  // A role is stuck when all of its daemons are.
  std::map<std::string, bool> role_is_stuck;
  for (const DaemonState& daemon : generator_.daemons()) {
    role_is_stuck.try_emplace(daemon.role, true).first->second &= daemon.stuck;
  }
  for (const auto& [role, is_stuck] : role_is_stuck) {
    if (is_stuck) {
      return Unavailable(StrCat("requests wait and no ", role, " daemon makes progress"));
    }
  }
  return std::nullopt;
}

RequestRules OpenAiService::Rules() const {
  RequestRules rules = rules_;
  for (const DaemonState& daemon : generator_.daemons()) {
    if (daemon.max_model_len == 0) continue;
    rules.max_model_len = std::min(rules.max_model_len, daemon.max_model_len);
  }
  return rules;
}

MaybeError OpenAiService::CheckServing() const {
  if (state_ == ServingState::kDraining) {
    ApiError error = Unavailable("the server is shutting down");
    error.close = true;
    return error;
  }
  if (!generator_.ready()) {
    std::string message = "no usable prefill and decode daemons yet";
    for (const DaemonState& daemon : generator_.daemons()) {
      if (!daemon.healthy) StrAppend(&message, "; ", daemon.name, ": ", daemon.detail);
    }
    return Unavailable(std::move(message));
  }
  return CheckProgress();
}

std::optional<OpenAiService::Ticket> OpenAiService::TryBegin() {
  Ticket ticket(&num_generating_);
  if (++num_generating_ > rules_.limits.max_num_requests) {
    metrics_->CountRejection("max_num_requests");
    return std::nullopt;
  }
  return ticket;
}

SessionContext OpenAiService::session_context() {
  return {.generator = generator_,
          .tokenizer = text_.tokenizer,
          .metrics = *metrics_,
          .settle_timeout = rules_.limits.settle_timeout,
          .request_timeout = rules_.limits.request_timeout};
}

HttpResponse OpenAiService::Answer(const RouteMatch& match, const HttpRequest& request) const {
  auto empty_or = [](const MaybeError& error) {
    return error ? ErrorResponse(*error) : HttpResponse{};
  };
  switch (match.route) {
    case Route::kModels:
      return Models();
    case Route::kModel:
      return Model(match.model_id);
    case Route::kTokenize:
      return TokenizeAnswer(request);
    case Route::kDetokenize:
      return DetokenizeAnswer(request);
    case Route::kTokenizerConfig:
      return JsonResponse(tokenizer_config_);
    case Route::kLive:
      return empty_or(CheckProgress());
    case Route::kHealth:
    case Route::kReady:
      if (state_ == ServingState::kLeaving) {
        return ErrorResponse(Unavailable("the server is about to shut down"));
      }
      return empty_or(CheckServing());
    case Route::kMetrics:
      return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
              .body = metrics_->Serialize(generator_.daemons())};
    case Route::kVersion:
      return JsonResponse(DumpJson({{"version", LYNX_VERSION}}));
    case Route::kLoad:
      return JsonResponse(DumpJson({{"server_load", num_generating()}}));
    case Route::kNone:
    case Route::kCompletions:
    case Route::kChatCompletions:
    case Route::kHealthGenerate:
      break;
  }
  return ErrorResponse(HttpError(404, StrCat("unknown path ", request.path)));
}

MaybeError OpenAiService::Plan(const RouteMatch& match, const HttpRequest& request,
                               GenerationPlan* out) const {
  const Api api = match.route == Route::kChatCompletions ? kChatApi : kCompletionsApi;
  const RequestRules rules = Rules();
  RequestBody body;
  if (match.route == Route::kHealthGenerate) {
    const TokenId any = std::max(text_.tokenizer.bos_id(), 0);
    body.json = {{"prompt", Json::array({any})}, {"max_tokens", 1}, {"temperature", 0}};
  } else {
    LYNX_RETURN_IF_REFUSED(ParseBody(request.body, rules.limits, &body));
  }
  OpenAiRequest parsed;
  LYNX_RETURN_IF_REFUSED(ParseOpenAiRequest(api, body, rules, &parsed));
  out->arrival_ns = request.arrival_ns;
  out->client = ClientOf(request, parsed.user);
  return PlanGeneration(std::move(parsed), text_, rules, request.request_id, out);
}

HttpResponse OpenAiService::Models() const {
  Json list = Json::array();
  for (const std::string& name : rules_.served_model_names) {
    list.push_back(Json::parse(ModelCardJson(name)));
  }
  return JsonResponse(DumpJson({{"object", "list"}, {"data", std::move(list)}}));
}

HttpResponse OpenAiService::Model(const std::string& id) const {
  const auto& names = rules_.served_model_names;
  if (std::find(names.begin(), names.end(), id) != names.end()) {
    return JsonResponse(ModelCardJson(id));
  }
  ApiError error = HttpError(404, StrCat("The model `", id, "` does not exist."));
  error.param = "model";
  error.code = "model_not_found";
  return ErrorResponse(error);
}

std::string OpenAiService::ModelCardJson(const std::string& id) const {
  return DumpJson({{"id", id},
                   {"object", "model"},
                   {"created", created_s_},
                   {"owned_by", "lynx"},
                   {"root", id},
                   {"parent", nullptr},
                   {"max_model_len", Rules().max_model_len},
                   {"permission", Json::array()}});
}

HttpResponse OpenAiService::TokenizeAnswer(const HttpRequest& request) const {
  RequestBody body;
  if (auto error = ParseBody(request.body, rules_.limits, &body)) return ErrorResponse(*error);
  const auto messages = body.json.find("messages");
  const bool is_chat = messages != body.json.end() && !messages->is_null();
  OpenAiRequest parsed;
  std::vector<std::vector<TokenId>> ids;
  MaybeError error =
      ParseOpenAiRequest(is_chat ? kTokenizeChatApi : kTokenizeTextApi, body, rules_, &parsed);
  if (!error) error = TokenizePrompts(parsed, text_, &ids);
  if (error) return ErrorResponse(*error);
  Json strings;
  if (parsed.return_token_strs) {
    strings = Json::array();
    for (TokenId id : ids.front()) strings.push_back(std::string(text_.tokenizer.TokenText(id)));
  }
  return JsonResponse(DumpJson({{"count", ids.front().size()},
                                {"max_model_len", Rules().max_model_len},
                                {"tokens", ids.front()},
                                {"token_strs", std::move(strings)}}));
}

HttpResponse OpenAiService::DetokenizeAnswer(const HttpRequest& request) const {
  RequestBody body;
  OpenAiRequest parsed;
  MaybeError error = ParseBody(request.body, rules_.limits, &body);
  if (!error) error = ParseOpenAiRequest(kDetokenizeApi, body, rules_, &parsed);
  if (error) return ErrorResponse(*error);
  const std::vector<TokenId>& ids = parsed.prompts.front().ids;
  return JsonResponse(
      DumpJson({{"prompt", text_.tokenizer.Decode(ids, /*skip_special_tokens=*/false)}}));
}

}  // namespace lynx
