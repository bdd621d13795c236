// SPDX-License-Identifier: Apache-2.0
#include "gateway/prompt_field.h"

#include <algorithm>
#include <array>

#include "gateway/request_fields.h"

namespace lynx {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

ApiError EmptyPrompt() {
  return InvalidValue("prompt", "Either prompt or prompt_embeds must be provided and non-empty.");
}

MaybeError ParseOnePrompt(const Json& prompt, const RequestRules& rules,
                          std::vector<OpenAiRequest::Prompt>* out) {
  if (prompt.empty() || prompt == "") return EmptyPrompt();
  OpenAiRequest::Prompt parsed;
  if (prompt.is_string()) {
    parsed.text = prompt.get<std::string>();
  } else if (prompt.is_array()) {
    LYNX_RETURN_IF_REFUSED(ParseTokenIds("prompt", prompt, rules.vocab_size, &parsed.ids));
  } else {
    return InvalidValue("prompt", StrCat("prompt must be a string, a list of strings, a list "
                                         "of token ids or a list of such lists, not ",
                                         prompt.type_name()));
  }
  out->push_back(std::move(parsed));
  return std::nullopt;
}

// `where` is "messages[3]".
MaybeError FlattenContent(const std::string& where, OrderedJson* message) {
  OrderedJson& content = (*message)["content"];
  if (content.is_string()) return std::nullopt;
  if (content.is_null()) {
    if (message->value("role", "") == "assistant" && message->contains("tool_calls")) {
      content = "";  // many templates add it to other text, whatever else there is
      return std::nullopt;
    }
    return InvalidValue("messages", where + ".content is missing");
  }
  if (!content.is_array()) {
    return InvalidValue("messages", StrCat(where,
                                           ".content must be a string or a list of "
                                           "parts, not ",
                                           content.type_name()));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const OrderedJson& part = content[i];
    const std::string part_name = StrCat(where, ".content[", i, "]");
    if (i > 0) text += '\n';
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) {
      return InvalidValue("messages", part_name + " must be an object with a type");
    }
    if (part["type"] != "text") {
      return UnsupportedParameter("messages",
                                  StrCat(part_name, ": parts of type ", part["type"].dump(),
                                         " are not supported, only \"text\""));
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      return InvalidValue("messages", part_name + ".text must be a string");
    }
    text += part["text"].get_ref<const std::string&>();
  }
  content = std::move(text);
  return std::nullopt;
}

// Those of `fields` that `object` has must be strings, or null.
MaybeError CheckStrings(const std::string& where, const OrderedJson& object,
                        std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    const auto it = object.find(field);
    if (it == object.end() || it->is_string() || it->is_null()) continue;
    return InvalidValue("messages",
                        StrCat(where, ".", field, " must be a string, not ", it->type_name()));
  }
  return std::nullopt;
}

MaybeError ParseToolCalls(const std::string& where, OrderedJson* message) {
  auto calls = message->find("tool_calls");
  if (calls == message->end()) return std::nullopt;
  if (!calls->is_array()) return InvalidValue("messages", where + ".tool_calls must be a list");
  for (size_t i = 0; i < calls->size(); ++i) {
    OrderedJson& call = (*calls)[i];
    const std::string name = StrCat(where, ".tool_calls[", i, "]");
    LYNX_RETURN_IF_REFUSED(CheckStrings(name, call, {"id", "type"}));
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("name") || !call["function"]["name"].is_string()) {
      return InvalidValue("messages", name + ".function.name must be a string");
    }
    OrderedJson& arguments = call["function"]["arguments"];
    if (arguments.is_null() || arguments == "") arguments = OrderedJson::object();
    if (arguments.is_object()) continue;
    if (!arguments.is_string()) {
      return InvalidValue("messages", name + ".function.arguments must be a string of JSON");
    }
    auto parsed = ParseOrderedJson(arguments.get_ref<const std::string&>());
    if (!parsed.ok() || !parsed->is_object()) {
      return InvalidValue("messages", name + ".function.arguments is not a JSON object");
    }
    arguments = *std::move(parsed);
  }
  return std::nullopt;
}

MaybeError ParseMessage(const std::string& where, OrderedJson* message) {
  if (!message->is_object()) return InvalidValue("messages", where + " must be an object");
  for (auto it = message->begin(); it != message->end();) {
    it = it->is_null() ? message->erase(it) : std::next(it);
  }
  const auto role = message->find("role");
  if (role == message->end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) ==
          kRoles.end()) {
    return InvalidValue("messages",
                        where + ".role must be system, developer, user, assistant or tool");
  }
  LYNX_RETURN_IF_REFUSED(CheckStrings(
      where, *message, {"name", "tool_call_id", "refusal", "reasoning", "reasoning_content"}));
  LYNX_RETURN_IF_REFUSED(ParseToolCalls(where, message));
  for (const auto& [from, to] :
       {std::pair("reasoning", "reasoning_content"), std::pair("reasoning_content", "reasoning")}) {
    if (!message->contains(from) || message->contains(to)) continue;
    OrderedJson reasoning = (*message)[from];
    (*message)[to] = std::move(reasoning);
  }
  return FlattenContent(where, message);
}

}  // namespace

MaybeError ParsePrompt(const Json& prompt, const RequestRules& rules,
                       std::vector<OpenAiRequest::Prompt>* out) {
  const bool is_list_of_prompts = prompt.is_array() && !prompt.empty() && !prompt[0].is_number() &&
                                  !prompt[0].is_boolean() && !prompt[0].is_null();
  if (!is_list_of_prompts) return ParseOnePrompt(prompt, rules, out);
  if (prompt.size() > static_cast<size_t>(rules.limits.max_num_prompts)) {
    return InvalidValue("prompt", StrCat("at most ", rules.limits.max_num_prompts,
                                         " prompts in one request, got ", prompt.size()));
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i].type() != prompt[0].type()) {
      return InvalidValue("prompt", StrCat("prompt[", i, "] is ", prompt[i].type_name(),
                                           ", but prompt[0] is ", prompt[0].type_name()));
    }
    LYNX_RETURN_IF_REFUSED(ParseOnePrompt(prompt[i], rules, out));
  }
  return std::nullopt;
}

MaybeError ParseMessages(OrderedJson messages, const GatewayLimits& limits, OpenAiRequest* out) {
  if (messages.empty()) return InvalidValue("messages", "messages must not be empty");
  if (messages.size() > static_cast<size_t>(limits.max_num_messages)) {
    return InvalidValue("messages", StrCat("at most ", limits.max_num_messages,
                                           " messages in one request, got ", messages.size()));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    LYNX_RETURN_IF_REFUSED(ParseMessage(StrCat("messages[", i, "]"), &messages[i]));
  }
  const OrderedJson& last = messages.back();
  if (last["content"].is_string()) out->last_message = last["content"].get<std::string>();
  out->response_role = last["role"].get<std::string>();
  out->chat.messages_json = messages.dump();
  return std::nullopt;
}

MaybeError ParseTools(const OrderedJson& tools, OpenAiRequest* out) {
  if (tools.empty()) return InvalidValue("tools", "tools must not be an empty list");
  for (size_t i = 0; i < tools.size(); ++i) {
    const OrderedJson& tool = tools[i];
    const bool valid = tool.is_object() && tool.value("type", OrderedJson()) == "function" &&
                       tool.contains("function") && tool["function"].is_object() &&
                       tool["function"].value("name", OrderedJson()).is_string();
    if (!valid) {
      return InvalidValue("tools", StrCat("tools[", i,
                                          "] must be {\"type\": \"function\", "
                                          "\"function\": {\"name\": …}}"));
    }
  }
  out->chat.tools_json = tools.dump();
  return std::nullopt;
}

}  // namespace lynx
