// SPDX-License-Identifier: Apache-2.0
#include "text/json_field.h"

#include <algorithm>

#include "formats/file_error.h"

namespace lynx {
namespace {

const nlohmann::json kNull;

}  // namespace

absl::Status JsonField::Error(std::string_view reason) const {
  if (place_.empty())
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", std::string(reason)));
  return FileError(file_, place_, reason);
}

absl::StatusOr<JsonField> JsonField::Find(const std::string& key) const {
  LYNX_RETURN_IF_ERROR(WantObject());
  const auto member = value_.find(key);
  return JsonField(member == value_.end() ? kNull : *member, file_,
                   absl::StrCat(place_, place_.empty() ? "" : ".", Printable(key)));
}

absl::StatusOr<JsonField> JsonField::Get(const std::string& key) const {
  LYNX_ASSIGN_OR_RETURN(JsonField field, Find(key));
  if (!value_.contains(key)) return field.Error("missing");
  return field;
}

JsonField JsonField::At(size_t index) const {
  return JsonField(value_[index], file_, absl::StrCat(place_, "[", index, "]"));
}

absl::Status JsonField::WantObject() const {
  if (value_.is_object()) return absl::OkStatus();
  return Error(absl::StrCat("is ", value_.type_name(), ", want an object"));
}

absl::Status JsonField::WantArray() const {
  if (value_.is_array()) return absl::OkStatus();
  return Error(absl::StrCat("is ", value_.type_name(), ", want an array"));
}

absl::Status JsonField::WantOnly(std::initializer_list<std::string_view> keys) const {
  LYNX_RETURN_IF_ERROR(WantObject());
  for (const auto& [key, member] : value_.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      return Error(absl::StrCat("has the unknown member \"", Printable(key), "\""));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> JsonField::String() const {
  if (value_.is_string()) return value_.get<std::string>();
  return Error(absl::StrCat("is ", value_.type_name(), ", want a string"));
}

absl::StatusOr<int64_t> JsonField::Int(int64_t min, int64_t max) const {
  const bool fits = value_.is_number_integer() &&
                    !(value_.is_number_unsigned() && value_.get<uint64_t>() > INT64_MAX);
  if (!fits || value_.get<int64_t>() < min || value_.get<int64_t>() > max) {
    return Error(absl::StrCat("is ", value_.is_number() ? value_.dump() : value_.type_name(),
                              ", want an integer in ", min, "..", max));
  }
  return value_.get<int64_t>();
}

absl::StatusOr<std::string> JsonField::String(const std::string& key) const {
  LYNX_ASSIGN_OR_RETURN(const JsonField field, Get(key));
  return field.String();
}

absl::StatusOr<bool> JsonField::Bool(const std::string& key, bool fallback) const {
  LYNX_ASSIGN_OR_RETURN(const JsonField field, Find(key));
  if (field.is_null()) return fallback;
  if (!field.value_.is_boolean()) return field.Error("want true or false");
  return field.value_.get<bool>();
}

}  // namespace lynx
