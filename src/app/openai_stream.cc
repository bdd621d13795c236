// SPDX-License-Identifier: Apache-2.0
#include "app/openai_stream.h"

namespace lynx {

absl::Status EventStream::Push(std::string_view bytes) {
  while (!bytes.empty() && !is_broken_) {
    if (after_cr_ && bytes[0] == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = std::min(bytes.find_first_of("\r\n"), bytes.size());
    line_ += bytes.substr(0, end);
    is_broken_ = line_.size() + data_.size() > kMaxEventBytes;
    if (end == bytes.size()) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    TakeLine();
  }
  if (!is_broken_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("an event is longer than ", kMaxEventBytes, " bytes"));
}

void EventStream::Finish() {
  if (is_broken_) return;
  if (!line_.empty()) TakeLine();
  Dispatch();
}

void EventStream::TakeLine() {
  std::string_view line = line_;
  if (is_first_line_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  is_first_line_ = false;
  if (line.empty()) {
    Dispatch();
  } else if (line == "data" || line.starts_with("data:")) {
    std::string_view value = line.substr(std::min<size_t>(line.size(), 5));
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

void EventStream::Dispatch() {
  if (!has_data_) return;
  on_data_(data_);
  data_.clear();
  has_data_ = false;
}

const nlohmann::json& Member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string ErrorMessage(const nlohmann::json& body) {
  const nlohmann::json& error = Member(body, "error");
  if (error.is_null()) return "";
  const nlohmann::json& message = Member(error, "message");
  const nlohmann::json& best = message.is_null() ? error : message;
  return best.is_string() ? best.get<std::string>()
                          : best.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RefusalMessage(int http_status, const std::string& body) {
  const std::string message = ErrorMessage(nlohmann::json::parse(body, nullptr, false));
  return message.empty() ? absl::StrCat("HTTP ", http_status) : message;
}

}  // namespace lynx
