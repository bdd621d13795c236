// SPDX-License-Identifier: Apache-2.0
// A value inside a JSON file that knows where it stands, so that every complaint names the place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "lynx/status.h"
#include "nlohmann/json.hpp"

namespace lynx {

// Refers to a document that outlives it. Every error is kInvalidArgument "FILE: PLACE: reason".
class JsonField {
 public:
  JsonField(const nlohmann::json& document, std::string file)
      : value_(document), file_(std::move(file)) {}

  const nlohmann::json& value() const { return value_; }
  absl::Status Error(std::string_view reason) const;

  // A member of an object; Get wants it to be there, Find gives null when it is not.
  absl::StatusOr<JsonField> Get(const std::string& key) const;
  absl::StatusOr<JsonField> Find(const std::string& key) const;
  JsonField At(size_t index) const;  // of an array; index < size
  bool is_null() const { return value_.is_null(); }

  absl::Status WantObject() const;
  absl::Status WantArray() const;
  // An object with no keys but these.
  absl::Status WantOnly(std::initializer_list<std::string_view> keys) const;
  absl::StatusOr<std::string> String() const;
  absl::StatusOr<int64_t> Int(int64_t min, int64_t max) const;
  absl::StatusOr<std::string> String(const std::string& key) const;
  // `fallback` when the member is absent or null.
  absl::StatusOr<bool> Bool(const std::string& key, bool fallback) const;

 private:
  JsonField(const nlohmann::json& value, std::string file, std::string place)
      : value_(value), file_(std::move(file)), place_(std::move(place)) {}

  const nlohmann::json& value_;
  std::string file_;
  std::string place_;
};

}  // namespace lynx
