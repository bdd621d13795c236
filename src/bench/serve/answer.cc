// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/answer.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

bool IsEmpty(const Json& value) {
  return value.is_null() || value.empty() || (value.is_string() && value == "");
}

// The chunk that opens a chat answer.
bool IsRoleOnly(const Json& choice) {
  const Json& delta = Member(choice, "delta");
  if (Member(delta, "role").is_null() || !Member(choice, "finish_reason").is_null()) return false;
  for (const auto& [key, value] : delta.items()) {
    if (key != "role" && !IsEmpty(value)) return false;
  }
  return true;
}

void AppendText(const Json& value, std::string* text) {
  if (value.is_string()) *text += value.get_ref<const std::string&>();
}

}  // namespace

AnswerReader::AnswerReader(AnswerRecord* record)
    : record_(*record), events_([this](std::string_view data) { TakeData(data); }) {}

void AnswerReader::Push(std::string_view bytes, int64_t now_ns) {
  now_ns_ = now_ns;
  const absl::Status status = events_.Push(bytes);
  if (record_.ok() && !status.ok()) record_.error = std::string(status.message());
}

void AnswerReader::Finish() {
  events_.Finish();
  if (!record_.ok()) return;
  if (record_.event_ns.empty()) {
    record_.error = "the answer has no event with choices";
  } else if (!is_done_ && !has_finish_) {
    record_.error = "the stream ended without [DONE] or a finish_reason";
  }
  if (record_.output_tokens == 0) {
    record_.output_tokens = static_cast<int64_t>(record_.event_ns.size());
  }
}

void AnswerReader::TakeData(std::string_view data) {
  if (is_done_ || !record_.ok()) return;
  if (data == "[DONE]") {
    is_done_ = true;
    return;
  }
  const Json event = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    record_.error = "an event is no JSON object: " + std::string(data.substr(0, 80));
    return;
  }
  record_.error = ErrorMessage(event);
  const Json& choices = Member(event, "choices");
  if (choices.is_array() && !choices.empty()) TakeChoice(choices[0]);
  TakeUsage(Member(event, "usage"));
}

void AnswerReader::TakeChoice(const Json& choice) {
  if (IsRoleOnly(choice)) return;
  record_.event_ns.push_back(now_ns_);
  has_finish_ = has_finish_ || !Member(choice, "finish_reason").is_null();
  const Json& delta = Member(choice, "delta");
  AppendText(Member(choice, "text"), &record_.text);
  AppendText(Member(delta, "content"), &record_.text);
  const Json& reasoning = Member(delta, "reasoning");  // or its older name, never both
  AppendText(reasoning.is_string() ? reasoning : Member(delta, "reasoning_content"), &record_.text);
}

// The last one counts: some servers send the usage so far with every event.
void AnswerReader::TakeUsage(const Json& usage) {
  const Json& prompt = Member(usage, "prompt_tokens");
  const Json& output = Member(usage, "completion_tokens");
  if (prompt.is_number_unsigned()) record_.prompt_tokens = prompt;
  if (output.is_number_unsigned()) record_.output_tokens = output;
}

}  // namespace lynx
