// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string model;  // "" = the server's
  std::string system;
  std::string prompt;       // not empty: ask once and exit
  double temperature = -1;  // negative: the server's default
  int max_tokens = 0;       // 0: the server's default
  int64_t seed = -1;
};

// A conversation with a running server on the terminal; after each answer one line of timeline.
absl::Status RunChat(const ChatOptions& options);

}  // namespace lynx
