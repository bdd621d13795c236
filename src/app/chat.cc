// SPDX-License-Identifier: Apache-2.0
#include "app/chat.h"

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>

#include "absl/strings/str_format.h"
#include "app/http_client.h"
#include "nlohmann/json.hpp"

namespace lynx {
namespace {

using Json = nlohmann::json;

// Cuts a byte stream into the JSON payloads of its server-sent events.
class EventReader {
 public:
  explicit EventReader(std::function<void(const Json&)> on_event)
      : on_event_(std::move(on_event)) {}

  void Push(std::string_view bytes) {
    pending_ += bytes;
    for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.rfind("data: {", 0) != 0) continue;
      const Json event = Json::parse(line.substr(6), nullptr, /*allow_exceptions=*/false);
      if (event.is_object()) on_event_(event);
    }
  }

 private:
  std::function<void(const Json&)> on_event_;
  std::string pending_;
};

std::string Milliseconds(const Json& timeline, const char* key) {
  if (!timeline.contains(key) || !timeline[key].is_number()) return "";
  return absl::StrFormat(" %s %.1f ms |", key, timeline[key].get<double>());
}

// "scheduled 0.1 ms | first_token 35.2 ms | … | drafted 12, accepted 11 | bytes 1/2/3"
void PrintTimeline(const Json& usage) {
  if (!usage.contains("lynx")) return;
  const Json& t = usage["lynx"];
  std::string line;
  const Json events = t.value("events_ms", Json::object());
  for (const char* key :
       {"scheduled", "prefill_started", "first_token", "anchor_landed", "first_draft",
        "residual_landed", "target_landed", "verified", "finished"}) {
    line += Milliseconds(events, key);
  }
  absl::StrAppendFormat(&line, " drafted %d, accepted %d |", t.value("drafted", 0),
                        t.value("accepted", 0));
  const Json bytes = t.value("stage_bytes", Json::object());
  absl::StrAppendFormat(&line, " bytes %d anchor, %d residual, %d exact",
                        bytes.value("anchor", int64_t{0}), bytes.value("residual", int64_t{0}),
                        bytes.value("exact", int64_t{0}));
  std::printf("[%s | %d prompt + %d tokens]\n", line.c_str() + 1, usage.value("prompt_tokens", 0),
              usage.value("completion_tokens", 0));
}

Json MakeBody(const ChatOptions& options, const Json& messages) {
  Json body = {{"messages", messages},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"lynx", {{"timeline", true}}}};
  if (!options.model.empty()) body["model"] = options.model;
  if (options.temperature >= 0) body["temperature"] = options.temperature;
  if (options.max_tokens > 0) body["max_tokens"] = options.max_tokens;
  if (options.seed >= 0) body["seed"] = options.seed;
  return body;
}

// What an error object says; whatever server this is.
std::string ErrorMessage(const Json& body) {
  if (!body.is_object() || !body.contains("error")) return "";
  const Json& error = body["error"];
  const bool has_message = error.is_object() && error.contains("message");
  const Json& message = has_message ? error["message"] : error;
  return message.is_string() ? message.get<std::string>() : error.dump();
}

// Streams the answer to standard output and returns it.
absl::StatusOr<std::string> Ask(const ChatOptions& options, HttpRequest request,
                                const Json& messages) {
  request.method = "POST";
  request.target = "/v1/chat/completions";
  // Bytes of the terminal that are not UTF-8 become U+FFFD.
  request.body = MakeBody(options, messages).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string answer;
  Json usage;
  absl::Status error;
  EventReader events([&](const Json& event) {
    if (event.contains("error")) error = absl::UnavailableError(ErrorMessage(event));
    if (event.contains("usage") && event["usage"].is_object()) usage = event["usage"];
    if (!event.contains("choices") || event["choices"].empty()) return;
    const Json& delta = event["choices"][0].value("delta", Json::object());
    if (!delta.contains("content") || !delta["content"].is_string()) return;
    const std::string text = delta["content"];
    answer += text;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  });
  const auto response = SendHttp(request, [&](std::string_view bytes) { events.Push(bytes); });
  if (!response.ok()) return response.status();
  if (response->status != 200) {
    const std::string message = ErrorMessage(Json::parse(response->body, nullptr, false));
    return absl::InvalidArgumentError(message.empty() ? absl::StrCat("HTTP ", response->status)
                                                      : message);
  }
  std::fputs("\n", stdout);
  LYNX_RETURN_IF_ERROR(error);
  if (usage.is_object()) PrintTimeline(usage);
  return answer;
}

}  // namespace

absl::Status RunChat(const ChatOptions& options) {
  HttpRequest request;
  request.api_key = options.api_key;
  LYNX_RETURN_IF_ERROR(ParseUrl(options.url, &request.host, &request.port));
  Json messages = Json::array();
  if (!options.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.system}});
  }
  if (!options.prompt.empty()) {
    messages.push_back({{"role", "user"}, {"content", options.prompt}});
    return Ask(options, request, messages).status();
  }
  const bool terminal = isatty(STDIN_FILENO);
  for (std::string line;;) {
    if (terminal) std::fputs("> ", stdout), std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    auto answer = Ask(options, request, messages);
    if (!answer.ok()) {
      std::fprintf(stderr, "lynx chat: %s\n", std::string(answer.status().message()).c_str());
      messages.erase(messages.size() - 1);
      continue;
    }
    messages.push_back({{"role", "assistant"}, {"content", *answer}});
  }
  return absl::OkStatus();
}

}  // namespace lynx
