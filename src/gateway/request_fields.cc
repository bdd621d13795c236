// SPDX-License-Identifier: Apache-2.0
#include "gateway/request_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "gateway/prompt_field.h"
#include "text/ordered_json.h"

namespace lynx {
namespace {

constexpr unsigned C = kCompletionsApi;
constexpr unsigned X = kChatApi;
constexpr unsigned B = kCompletionsApi | kChatApi;
constexpr unsigned TT = kTokenizeTextApi;
constexpr unsigned TC = kTokenizeChatApi;
constexpr unsigned D = kDetokenizeApi;
constexpr double kMaxInt = std::numeric_limits<int>::max();
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr double kMinPositive = std::numeric_limits<float>::min();
constexpr double kNoBound = std::numeric_limits<double>::infinity();
constexpr size_t kMaxIdBytes = 128;

using Value = const FieldValue&;
using Target = FieldTarget&;

MaybeError ApplyModel(Value v, Target t) {
  const std::string& name = v.json.get_ref<const std::string&>();
  const auto& served = t.rules.served_model_names;
  if (name.empty()) return std::nullopt;
  if (std::find(served.begin(), served.end(), name) == served.end()) {
    ApiError error = InvalidValue("model", StrCat("The model `", name, "` does not exist."));
    error.status = 404;
    error.code = "model_not_found";
    return error;
  }
  t.request.model = name;
  return std::nullopt;
}

MaybeError ApplyNumSamples(Value v, Target t) {
  if (v.integer > t.rules.limits.max_num_samples) {
    return InvalidValue(
        "n", StrCat("n must be at most ", t.rules.limits.max_num_samples, ", got ", v.integer));
  }
  t.request.num_samples = static_cast<int>(v.integer);
  return std::nullopt;
}

MaybeError ApplyLogitBias(Value v, Target t) {
  std::map<TokenId, float> bias;
  for (const auto& [key, value] : v.json.items()) {
    TokenId id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size()) {
      return InvalidValue("logit_bias", StrCat("logit_bias: key `", key, "` is not a token id"));
    }
    if (id < 0 || id >= t.rules.vocab_size) {
      return InvalidValue("logit_bias", StrCat("logit_bias: token id ", id, " is not in 0..",
                                               t.rules.vocab_size - 1));
    }
    if (!value.is_number()) {
      return InvalidValue("logit_bias",
                          StrCat("logit_bias: the value of `", key, "` is not a number"));
    }
    bias[id] = static_cast<float>(std::clamp(value.get<double>(), -100.0, 100.0));
  }
  t.request.sampling.logit_bias.assign(bias.begin(), bias.end());
  return std::nullopt;
}

MaybeError ApplyStop(Value v, Target t) {
  const Json list = v.json.is_string() ? Json::array({v.json}) : v.json;
  const GatewayLimits& limits = t.rules.limits;
  if (!list.is_array()) {
    return InvalidValue(
        "stop", StrCat("stop must be a string or a list of strings, not ", list.type_name()));
  }
  if (list.size() > static_cast<size_t>(limits.max_num_stops)) {
    return InvalidValue(
        "stop", StrCat("at most ", limits.max_num_stops, " stop strings, got ", list.size()));
  }
  for (const Json& stop : list) {
    if (!stop.is_string() || stop == "") {
      return InvalidValue("stop", "every stop must be a string that is not empty");
    }
    if (stop.get_ref<const std::string&>().size() > static_cast<size_t>(limits.max_stop_bytes)) {
      return InvalidValue("stop", StrCat("a stop string must not be longer than ",
                                         limits.max_stop_bytes, " bytes"));
    }
    t.request.stops.push_back(stop.get<std::string>());
  }
  return std::nullopt;
}

MaybeError ApplyAllowedTokenIds(Value v, Target t) {
  if (v.json.empty()) return InvalidValue("allowed_token_ids", "allowed_token_ids is empty");
  return ParseTokenIds("allowed_token_ids", v.json, t.rules.vocab_size,
                       &t.request.sampling.allowed_token_ids);
}

// Shared by logprobs, top_logprobs and prompt_logprobs; −1 asks for the whole vocabulary.
MaybeError CheckNumLogprobs(std::string_view param, int64_t count, Target t,
                            std::optional<int>* out) {
  const int cap = t.rules.limits.max_logprobs;
  const int vocab_size = t.rules.vocab_size;
  const int64_t wanted = count == -1 ? vocab_size : count;
  const int64_t allowed = cap == -1 ? vocab_size : std::min(cap, vocab_size);
  if (wanted > allowed) {
    return InvalidValue(param, StrCat(param, " must be at most ", allowed, ", got ", count));
  }
  *out = static_cast<int>(wanted);
  return std::nullopt;
}

MaybeError ApplyStreamOptions(Value v, Target t) {
  for (const auto& [name, out] :
       {std::pair("include_usage", &t.request.include_usage),
        std::pair("continuous_usage_stats", &t.request.continuous_usage)}) {
    const auto it = v.json.find(name);
    if (it == v.json.end() || it->is_null()) continue;
    if (!it->is_boolean()) {
      return InvalidValue("stream_options", StrCat("stream_options.", name, " must be a boolean"));
    }
    *out = it->get<bool>();
  }
  if (!t.request.stream) {
    return InvalidValue("stream_options", "Stream options can only be defined when `stream=True`.");
  }
  return std::nullopt;
}

MaybeError ApplyLynx(Value v, Target t) {
  for (const auto& [name, out] : {std::pair("timeline", &t.request.show_timeline),
                                  std::pair("drafts", &t.request.show_drafts)}) {
    const auto it = v.json.find(name);
    if (it == v.json.end() || it->is_null()) continue;
    if (!it->is_boolean()) {
      return InvalidValue(StrCat("lynx.", name), StrCat("lynx.", name, " must be a boolean"));
    }
    *out = it->get<bool>();
  }
  const auto verify = v.json.find("verify");
  if (verify == v.json.end() || verify->is_null()) return std::nullopt;
  if (verify->is_string()) t.request.verify = VerifyModeOf(verify->get_ref<const std::string&>());
  if (!t.request.verify) {
    return InvalidValue("lynx.verify", "lynx.verify must be residual, source, hold or auto");
  }
  return std::nullopt;
}

MaybeError ApplyCacheSalt(Value v, Target t) {
  const std::string& salt = v.json.get_ref<const std::string&>();
  constexpr std::string_view kForbidden("@/\\\0", 4);
  if (salt.empty() || salt.size() > kMaxIdBytes ||
      salt.find_first_of(kForbidden) != std::string::npos) {
    return InvalidValue("cache_salt",
                        "cache_salt must be 1 to 128 characters without '@', '/', '\\' and NUL");
  }
  t.request.cache_salt = salt;
  return std::nullopt;
}

MaybeError ApplyRequestId(Value v, Target t) {
  const std::string& id = v.json.get_ref<const std::string&>();
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return c > 32 && c < 127; });
  if (id.empty() || id.size() > kMaxIdBytes || !printable) {
    return InvalidValue("request_id", "request_id must be 1 to 128 printable ASCII characters");
  }
  t.request.id = id;
  return std::nullopt;
}

// Beyond 32 bits only the order counts.
MaybeError ApplyPriority(Value v, Target t) {
  constexpr int64_t kMin = std::numeric_limits<int>::min(), kMax = std::numeric_limits<int>::max();
  t.request.priority = static_cast<int>(std::clamp(v.integer, kMin, kMax));
  if (v.integer == 0 || t.rules.accepts_priority) return std::nullopt;
  return InvalidValue("priority", StrCat("priority must be 0 under first-come-first-served "
                                         "scheduling, got ",
                                         v.integer));
}

MaybeError ApplyTruncationSide(Value v, Target t) {
  if (v.json != "left" && v.json != "right") {
    return InvalidValue("truncation_side", "truncation_side must be \"left\" or \"right\"");
  }
  t.request.truncation_keeps_end = v.json == "left";
  return std::nullopt;
}

// A field that templates get to see: its value once more, with the order of its objects.
MaybeError ReadOrdered(std::string_view name, Target t, OrderedJson* out) {
  auto value = ParseOrderedJson(MemberText(t.body_text, name));
  if (!value.ok()) {
    return InvalidValue(name, StrCat(name, ": ", std::string(value.status().message())));
  }
  *out = *std::move(value);
  return std::nullopt;
}

MaybeError ApplyMessages(Value, Target t) {
  OrderedJson messages;
  LYNX_RETURN_IF_REFUSED(ReadOrdered("messages", t, &messages));
  return ParseMessages(std::move(messages), t.rules.limits, &t.request);
}

MaybeError ApplyTools(Value, Target t) {
  OrderedJson tools;
  LYNX_RETURN_IF_REFUSED(ReadOrdered("tools", t, &tools));
  return ParseTools(tools, &t.request);
}

MaybeError ApplyTemplateKwargs(Value v, Target t) {
  for (const char* reserved : {"messages", "tools", "chat_template", "tokenize", "bos_token",
                               "eos_token", "add_generation_prompt", "continue_final_message"}) {
    if (v.json.contains(reserved)) {
      return InvalidValue("chat_template_kwargs",
                          StrCat("chat_template_kwargs must not set `", reserved, "`"));
    }
  }
  OrderedJson kwargs;
  LYNX_RETURN_IF_REFUSED(ReadOrdered("chat_template_kwargs", t, &kwargs));
  t.request.chat.kwargs_json = kwargs.dump();
  return std::nullopt;
}

// Adds to what chat_template_kwargs gave.
void AddTemplateKwarg(const std::string& name, OrderedJson value, Target t) {
  OrderedJson kwargs = OrderedJson::parse(t.request.chat.kwargs_json);
  if (!kwargs.contains(name)) kwargs[name] = std::move(value);
  t.request.chat.kwargs_json = kwargs.dump();
}

MaybeError ApplyReasoningEffort(Value v, Target t) {
  constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const std::string& effort = v.json.get_ref<const std::string&>();
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    return InvalidValue("reasoning_effort",
                        StrCat("reasoning_effort: `", effort, "` is not known"));
  }
  AddTemplateKwarg("reasoning_effort", effort, t);
  AddTemplateKwarg("enable_thinking", effort != "none", t);
  return std::nullopt;
}

MaybeError ApplyDocuments(Value, Target t) {
  OrderedJson documents;
  LYNX_RETURN_IF_REFUSED(ReadOrdered("documents", t, &documents));
  AddTemplateKwarg("documents", std::move(documents), t);
  return std::nullopt;
}

MaybeError ApplyToolChoice(Value v, Target t) {
  if (v.json == "none") return std::nullopt;
  if (t.request.chat.tools_json == "null") {
    return InvalidValue("tool_choice", "tool_choice needs tools");
  }
  return UnsupportedParameter("tool_choice",
                              "only tool_choice \"none\" is supported: there is no tool parser");
}

MaybeError ApplyResponseFormat(Value v, Target) {
  const Json type = v.json.value("type", Json());
  if (type == "text") return std::nullopt;
  if (type == "json_schema") {
    const Json schema = v.json.value("json_schema", Json());
    if (!schema.is_object() || !schema.contains("schema")) {
      return InvalidValue("response_format", "response_format.json_schema.schema is missing");
    }
  } else if (type != "json_object" && type != "structural_tag") {
    return InvalidValue("response_format",
                        StrCat("response_format.type: ", DumpJson(type), " is not known"));
  }
  return UnsupportedParameter("response_format",
                              StrCat("response_format ", DumpJson(type), " is not supported"));
}

#define SET(member, value)                                             \
  [](Value v, Target t) -> MaybeError {                                \
    t.request.member = static_cast<decltype(t.request.member)>(value); \
    return std::nullopt;                                               \
  }

constexpr auto kIgnore = [](Value, Target) -> MaybeError { return std::nullopt; };

const RequestField kFields[] = {
    {"model", B | TT | TC | D, FieldType::kString, 0, 0, ApplyModel},
    {"request_id", B, FieldType::kString, 0, 0, ApplyRequestId},
    {"session_id", B, FieldType::kString, 0, 0, kIgnore},
    {"stream", B, FieldType::kBool, 0, 0, SET(stream, v.boolean)},
    {"stream_options", B, FieldType::kObject, 0, 0, ApplyStreamOptions},
    {"lynx", B, FieldType::kObject, 0, 0, ApplyLynx},
    // Text.
    {"prompt", C, FieldType::kAny, 0, 0,
     [](Value v, Target t) { return ParsePrompt(v.json, t.rules, &t.request.prompts); }},
    {"prompt", TT, FieldType::kString, 0, 0,
     [](Value v, Target t) -> MaybeError {
       t.request.prompts.push_back({.text = v.json.get<std::string>(), .ids = {}});
       return std::nullopt;
     }},
    {"tokens", D, FieldType::kList, 0, 0,
     [](Value v, Target t) {
       return ParseTokenIds("tokens", v.json, t.rules.vocab_size,
                            &t.request.prompts.emplace_back().ids);
     }},
    {"messages", X | TC, FieldType::kList, 0, 0, ApplyMessages},
    {"tools", X | TC, FieldType::kList, 0, 0, ApplyTools},
    {"tool_choice", X, FieldType::kAny, 0, 0, ApplyToolChoice},
    {"parallel_tool_calls", X, FieldType::kBool, 0, 0, kIgnore},
    {"chat_template", X | TC, FieldType::kString, 0, 0,
     [](Value, Target) -> MaybeError {
       return UnsupportedParameter("chat_template", "templates of requests are not accepted");
     }},
    {"chat_template_kwargs", X | TC, FieldType::kObject, 0, 0, ApplyTemplateKwargs},
    {"reasoning_effort", X, FieldType::kString, 0, 0, ApplyReasoningEffort},
    {"include_reasoning", X, FieldType::kBool, 0, 0, kIgnore},
    {"documents", X, FieldType::kList, 0, 0, ApplyDocuments},
    {"add_generation_prompt", X | TC, FieldType::kBool, 0, 0,
     SET(chat.add_generation_prompt, v.boolean)},
    {"continue_final_message", X | TC, FieldType::kBool, 0, 0,
     SET(chat.continue_final_message, v.boolean)},
    {"response_format", B, FieldType::kObject, 0, 0, ApplyResponseFormat},
    {"add_special_tokens", B | TT | TC, FieldType::kBool, 0, 0, SET(add_special_tokens, v.boolean)},
    {"truncate_prompt_tokens", B, FieldType::kInt, -1, kMaxInt,
     SET(truncate_prompt_tokens, v.integer)},
    {"truncation_side", B, FieldType::kString, 0, 0, ApplyTruncationSide},
    {"return_token_strs", TT | TC, FieldType::kBool, 0, 0, SET(return_token_strs, v.boolean)},
    // Length and sampling.
    {"max_tokens", C, FieldType::kInt, 0, kNoBound, SET(max_tokens, v.integer)},
    {"max_tokens", X, FieldType::kInt, 1, kNoBound, SET(max_tokens, v.integer)},
    {"max_completion_tokens", X, FieldType::kInt, 1, kNoBound, SET(max_tokens, v.integer)},
    {"min_tokens", B, FieldType::kInt, 0, kMaxInt, SET(sampling.min_tokens, v.integer)},
    {"n", B, FieldType::kInt, 1, kNoBound, ApplyNumSamples},
    {"temperature", B, FieldType::kFloat, 0, 2, SET(sampling.temperature, v.number)},
    {"top_p", B, FieldType::kFloat, kMinPositive, 1, SET(sampling.top_p, v.number)},
    {"top_k", B, FieldType::kInt, -1, kMaxInt, SET(sampling.top_k, v.integer)},
    {"min_p", B, FieldType::kFloat, 0, 1, SET(sampling.min_p, v.number)},
    {"presence_penalty", B, FieldType::kFloat, -2, 2, SET(sampling.presence_penalty, v.number)},
    {"frequency_penalty", B, FieldType::kFloat, -2, 2, SET(sampling.frequency_penalty, v.number)},
    {"repetition_penalty", B, FieldType::kFloat, kMinPositive, kMaxFloat,
     SET(sampling.repetition_penalty, v.number)},
    {"seed", B, FieldType::kInt, -kNoBound, kNoBound, SET(seed, v.integer)},
    {"logit_bias", B, FieldType::kObject, 0, 0, ApplyLogitBias},
    {"allowed_token_ids", B, FieldType::kList, 0, 0, ApplyAllowedTokenIds},
    // Stopping.
    {"stop", B, FieldType::kAny, 0, 0, ApplyStop},
    {"stop_token_ids", B, FieldType::kList, 0, 0,
     [](Value v, Target t) {
       return ParseTokenIds("stop_token_ids", v.json, t.rules.vocab_size,
                            &t.request.sampling.stop_token_ids);
     }},
    {"ignore_eos", B, FieldType::kBool, 0, 0, SET(ignore_eos, v.boolean)},
    {"include_stop_str_in_output", B, FieldType::kBool, 0, 0,
     SET(include_stop_in_output, v.boolean)},
    {"skip_special_tokens", B, FieldType::kBool, 0, 0, SET(skip_special_tokens, v.boolean)},
    {"spaces_between_special_tokens", B, FieldType::kBool, 0, 0, kIgnore},
    // What the answer holds.
    {"echo", B, FieldType::kBool, 0, 0, SET(echo, v.boolean)},
    {"logprobs", C, FieldType::kInt, -1, kMaxInt,
     [](Value v, Target t) {
       return CheckNumLogprobs("logprobs", v.integer, t, &t.request.num_logprobs);
     }},
    {"logprobs", X, FieldType::kBool, 0, 0,
     [](Value v, Target t) -> MaybeError {
       if (v.boolean) t.request.num_logprobs = 0;
       return std::nullopt;
     }},
    {"top_logprobs", X, FieldType::kInt, -1, kMaxInt,
     [](Value v, Target t) -> MaybeError {
       if (v.integer == 0) return std::nullopt;
       if (!t.request.num_logprobs) {
         return InvalidValue("top_logprobs", "top_logprobs needs `logprobs: true`");
       }
       return CheckNumLogprobs("top_logprobs", v.integer, t, &t.request.num_logprobs);
     }},
    {"prompt_logprobs", B, FieldType::kInt, -1, kMaxInt,
     [](Value v, Target t) -> MaybeError {
       if (t.request.stream && v.integer != 0) {
         return InvalidValue("prompt_logprobs", "prompt_logprobs cannot be streamed");
       }
       return CheckNumLogprobs("prompt_logprobs", v.integer, t, &t.request.num_prompt_logprobs);
     }},
    {"return_token_ids", B, FieldType::kBool, 0, 0, SET(return_token_ids, v.boolean)},
    {"return_tokens_as_token_ids", B, FieldType::kBool, 0, 0,
     SET(return_tokens_as_token_ids, v.boolean)},
    // Control.
    {"priority", B, FieldType::kInt, -kNoBound, kNoBound, ApplyPriority},
    {"user", B, FieldType::kString, 0, 0, SET(user, v.json.get<std::string>())},
    {"cache_salt", B, FieldType::kString, 0, 0, ApplyCacheSalt},
};
#undef SET

// A field that no one here implements, and the value that asks for nothing.
struct UnsupportedField {
  std::string_view name;
  const char* neutral;  // JSON; null and [] always ask for nothing
};

constexpr UnsupportedField kUnsupported[] = {
    {"suffix", "\"\""},
    {"prompt_embeds", "[]"},
    {"use_beam_search", "false"},
    {"length_penalty", "1.0"},
    {"bad_words", "[]"},
    {"logprob_token_ids", "[]"},
    {"structured_outputs", "{}"},
    {"guided_json", "[]"},
    {"guided_regex", "[]"},
    {"guided_choice", "[]"},
    {"guided_grammar", "[]"},
    {"guided_json_object", "false"},
    {"stream_interval", "1"},
    {"vllm_xargs", "{}"},
    {"watermarking", "false"},
    {"repetition_detection", "false"},
    {"thinking_token_budget", "[]"},
    {"mm_processor_kwargs", "{}"},
    {"media_io_kwargs", "{}"},
    {"functions", "[]"},
    {"function_call", "\"none\""},
    {"audio", "[]"},
    {"web_search_options", "[]"},
    {"modalities", "[\"text\"]"},
    {"logits_processors", "[]"},
};

ApiError WrongType(const RequestField& field, const Json& value) {
  constexpr std::array kNames = {"a boolean", "an integer", "a number", "a string",
                                 "a list",    "an object",  "a value"};
  return InvalidValue(
      field.name, StrCat(field.name, " must be ", kNames[static_cast<size_t>(field.type)], ", not ",
                         value.type_name()));
}

// An integer, also written as 16.0; never a boolean.
bool ReadInteger(const Json& json, int64_t* out) {
  if (json.is_number_unsigned()) {
    const uint64_t value = json.get<uint64_t>();
    *out = static_cast<int64_t>(value);
    return value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  if (json.is_number_integer()) {
    *out = json.get<int64_t>();
    return true;
  }
  if (!json.is_number_float()) return false;
  const double value = json.get<double>();
  if (value != std::floor(value) || std::abs(value) >= 0x1p63) return false;
  *out = static_cast<int64_t>(value);
  return true;
}

bool HasType(FieldType type, const Json& json) {
  switch (type) {
    case FieldType::kBool:
      return json.is_boolean();
    case FieldType::kInt:
    case FieldType::kFloat:
      return json.is_number();
    case FieldType::kString:
      return json.is_string();
    case FieldType::kList:
      return json.is_array();
    case FieldType::kObject:
      return json.is_object();
    case FieldType::kAny:
      return true;
  }
  return false;
}

// Names the bound that was missed.
MaybeError CheckBounds(const RequestField& field, double value, const Json& json) {
  if (value >= field.min && value <= field.max) return std::nullopt;
  auto number = [&](double bound) {
    return field.type == FieldType::kInt ? std::to_string(static_cast<int64_t>(bound))
                                         : StrCat(bound);
  };
  std::string range = StrCat(value < field.min ? "at least " : "at most ",
                             number(value < field.min ? field.min : field.max));
  if (field.min == kMinPositive && value <= 0) range = "greater than 0";
  return InvalidValue(field.name, StrCat(field.name, " must be ", range, ", got ", json.dump()));
}

}  // namespace

std::span<const RequestField> RequestFields() { return kFields; }

MaybeError ApplyField(const RequestField& field, const Json& body, FieldTarget& target) {
  const auto it = body.find(field.name);
  if (it == body.end() || it->is_null()) return std::nullopt;
  const Json& json = *it;
  if (!HasType(field.type, json)) return WrongType(field, json);
  FieldValue value{.json = json};
  if (field.type == FieldType::kBool) value.boolean = json.get<bool>();
  if (field.type == FieldType::kInt) {
    if (!ReadInteger(json, &value.integer)) {
      return InvalidValue(field.name,
                          StrCat(field.name, " must be a 64-bit integer, got ", json.dump()));
    }
    LYNX_RETURN_IF_REFUSED(CheckBounds(field, static_cast<double>(value.integer), json));
  }
  if (field.type == FieldType::kFloat) {
    const double number = json.get<double>();
    LYNX_RETURN_IF_REFUSED(CheckBounds(field, number, json));
    value.number = static_cast<float>(number);
  }
  return field.apply(value, target);
}

MaybeError RefuseUnsupported(Api api, const Json& body) {
  if ((api & (kCompletionsApi | kChatApi)) == 0) return std::nullopt;
  for (const UnsupportedField& field : kUnsupported) {
    const auto it = body.find(field.name);
    if (it == body.end() || it->is_null() || *it == Json::array()) continue;
    if (*it == Json::parse(field.neutral)) continue;
    return UnsupportedParameter(field.name, StrCat(field.name, " is not supported"));
  }
  return std::nullopt;
}

MaybeError ParseTokenIds(std::string_view param, const Json& list, int vocab_size,
                         std::vector<TokenId>* out) {
  out->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    int64_t id = 0;
    if (!list[i].is_number_integer() || !ReadInteger(list[i], &id)) {
      return InvalidValue(param,
                          StrCat(param, "[", i, "] must be a token id, not ", list[i].type_name()));
    }
    if (id < 0 || id >= vocab_size) {
      return InvalidValue(
          param, StrCat(param, "[", i, "]: token id ", id, " is not in 0..", vocab_size - 1));
    }
    out->push_back(static_cast<TokenId>(id));
  }
  return std::nullopt;
}

}  // namespace lynx
