// SPDX-License-Identifier: Apache-2.0
#include "app/chat.h"

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>

#include "absl/strings/str_format.h"
#include "app/http_client.h"
#include "app/openai_stream.h"
#include "nlohmann/json.hpp"

namespace lynx {
namespace {

using Json = nlohmann::json;

int64_t Count(const Json& object, const char* key) {
  const Json value = Member(object, key);
  return value.is_number() ? value.get<int64_t>() : 0;
}

std::string Milliseconds(const Json& timeline, const char* key) {
  const Json value = Member(timeline, key);
  return value.is_number() ? absl::StrFormat(" %s %.1f ms |", key, value.get<double>()) : "";
}

// "scheduled 0.1 ms | first_token 35.2 ms | … | drafted 12, accepted 11 | bytes 1/2/3"
void PrintTimeline(const Json& usage) {
  const Json t = Member(usage, "lynx");
  if (!t.is_object()) return;
  std::string line;
  const Json events = Member(t, "events_ms");
  for (const char* key :
       {"scheduled", "prefill_started", "first_token", "anchor_landed", "first_draft",
        "residual_landed", "target_landed", "verified", "finished"}) {
    line += Milliseconds(events, key);
  }
  const Json bytes = Member(t, "stage_bytes");
  absl::StrAppendFormat(&line, " drafted %d, accepted %d | bytes %d anchor, %d residual, %d exact",
                        Count(t, "drafted"), Count(t, "accepted"), Count(bytes, "anchor"),
                        Count(bytes, "residual"), Count(bytes, "exact"));
  std::printf("[%s | %d prompt + %d tokens]\n", line.c_str() + 1,
              static_cast<int>(Count(usage, "prompt_tokens")),
              static_cast<int>(Count(usage, "completion_tokens")));
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
  bool is_done = false;
  EventStream events([&](std::string_view data) {
    is_done = is_done || data == "[DONE]";
    const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object()) return;
    if (event.contains("error")) error = absl::UnavailableError(ErrorMessage(event));
    if (Member(event, "usage").is_object()) usage = event["usage"];
    const Json choices = Member(event, "choices");
    if (!choices.is_array() || choices.empty()) return;
    const Json content = Member(Member(choices[0], "delta"), "content");
    if (!content.is_string()) return;
    const std::string text = content;
    answer += text;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  });
  absl::Status broken;
  const auto response =
      SendHttp(request, [&](std::string_view bytes) { broken = events.Push(bytes); });
  LYNX_RETURN_IF_ERROR(response.status());
  if (response->status != 200) {
    return absl::InvalidArgumentError(RefusalMessage(response->status, response->body));
  }
  events.Finish();
  LYNX_RETURN_IF_ERROR(broken);
  std::fputs("\n", stdout);
  LYNX_RETURN_IF_ERROR(error);
  if (!is_done) {
    return absl::UnavailableError(
        absl::StrCat(options.url, ": the answer ended early, or this is no OpenAI server"));
  }
  if (usage.is_object()) PrintTimeline(usage);
  return answer;
}

}  // namespace

absl::Status RunChat(const ChatOptions& options) {
  HttpRequest request;
  request.api_key = options.api_key;
  const absl::Status parsed = ParseUrl(options.url, &request.host, &request.port);
  if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat("--url: ", parsed.message()));
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
