// SPDX-License-Identifier: Apache-2.0
// Typed access to a JSON object of a file; every error is one line "FILE: key: reason".
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

// A value that remembers where it came from. Immutable.
class JsonObject {
 public:
  // The file at path, which must hold one object without duplicate keys.
  static absl::StatusOr<JsonObject> Read(const std::string& path);
  // The same from text; `file` is what messages call it.
  static absl::StatusOr<JsonObject> Parse(std::string_view text, const std::string& file);

  // Null counts as absent everywhere.
  bool Has(const std::string& key) const;
  const nlohmann::json& json() const { return json_; }

  absl::StatusOr<int64_t> Int(const std::string& key, int64_t min, int64_t max) const;
  absl::StatusOr<int64_t> IntOr(const std::string& key, int64_t absent, int64_t min,
                                int64_t max) const;
  absl::StatusOr<double> Float(const std::string& key, double min, double max) const;
  absl::StatusOr<double> FloatOr(const std::string& key, double absent, double min,
                                 double max) const;
  absl::StatusOr<bool> BoolOr(const std::string& key, bool absent) const;
  absl::StatusOr<std::string> String(const std::string& key) const;
  absl::StatusOr<std::string> StringOr(const std::string& key, const std::string& absent) const;
  absl::StatusOr<JsonObject> Object(const std::string& key) const;

  absl::Status Error(const std::string& key, std::string_view reason) const;

 private:
  JsonObject(std::string file, std::string prefix, nlohmann::json json);
  absl::Status WrongType(const std::string& key, const char* want) const;

  std::string file_;
  std::string prefix_;  // "rope_scaling." for an object inside the file's
  nlohmann::json json_;
};

}  // namespace lynx
