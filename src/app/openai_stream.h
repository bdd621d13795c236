// SPDX-License-Identifier: Apache-2.0
// What OpenAI servers send: streams of server-sent events, and error objects.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "lynx/status.h"
#include "nlohmann/json.hpp"

namespace lynx {

// Cuts a byte stream into the data of its server-sent events, as the HTML standard says (section
// 9.2.6): lines end with LF, CR or CRLF, an empty line ends an event, comments and fields other
// than `data` are skipped. One thread.
class EventStream {
 public:
  // Longer events are refused.
  static constexpr size_t kMaxEventBytes = 16u << 20;

  explicit EventStream(std::function<void(std::string_view data)> on_data)
      : on_data_(std::move(on_data)) {}

  // Pieces of any size. After an error nothing more is taken.
  absl::Status Push(std::string_view bytes);
  // The connection has ended. An event without its empty line counts, unlike in the standard:
  // some servers close right after "data: [DONE]".
  void Finish();

 private:
  void TakeLine();
  void Dispatch();

  std::function<void(std::string_view)> on_data_;
  std::string line_, data_;
  bool has_data_ = false;
  bool is_first_line_ = true;
  bool after_cr_ = false;  // an LF now belongs to the CR before it
  bool is_broken_ = false;
};

// The member of what may be anything, null if there is none: other servers send other things.
const nlohmann::json& Member(const nlohmann::json& object, const char* key);

// What {"error": …} says, in any shape that servers give it; "" when `body` is no error.
std::string ErrorMessage(const nlohmann::json& body);
// Why a response was refused: what its body says, else its status.
std::string RefusalMessage(int http_status, const std::string& body);

}  // namespace lynx
