// SPDX-License-Identifier: Apache-2.0
#include "bench/json_lines.h"

#include <cstdio>

namespace lynx {

void PrintJson(const nlohmann::ordered_json& object) {
  std::printf("%s\n", object.dump().c_str());
  std::fflush(stdout);
}

absl::StatusOr<JsonLines> JsonLines::Open(const std::string& path) {
  JsonLines lines;
  lines.path_ = path;
  if (path.empty()) return lines;
  lines.file_.open(path, std::ios::app);
  if (lines.file_) return lines;
  return absl::InvalidArgumentError(absl::StrCat("--json: ", path, " cannot be written"));
}

absl::Status JsonLines::Print(const nlohmann::ordered_json& object) {
  PrintJson(object);
  if (path_.empty() || file_ << object.dump() << std::endl) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--json: ", path_, " cannot be written"));
}

}  // namespace lynx
