// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <string>

#include "lynx/status.h"
#include "nlohmann/json.hpp"

namespace lynx {

// One JSON object on a line of its own, at once.
void PrintJson(const nlohmann::ordered_json& object);

// The same, and appended to the file of --json if there is one. One thread.
class JsonLines {
 public:
  // path: "" for no file. kInvalidArgument when it cannot be opened.
  static absl::StatusOr<JsonLines> Open(const std::string& path);
  absl::Status Print(const nlohmann::ordered_json& object);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace lynx
