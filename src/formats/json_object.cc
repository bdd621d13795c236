// SPDX-License-Identifier: Apache-2.0
#include "formats/json_object.h"

#include <limits>
#include <utility>

#include "formats/file_error.h"
#include "formats/json_guard.h"
#include "formats/mapped_file.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kLimits = {.max_depth = 64, .unique_keys = true};

std::string Shown(const Json& value) {
  return Printable(value.dump(-1, ' ', true, Json::error_handler_t::replace));
}

}  // namespace

JsonObject::JsonObject(std::string file, std::string prefix, Json value)
    : file_(std::move(file)), prefix_(std::move(prefix)), json_(std::move(value)) {}

absl::StatusOr<JsonObject> JsonObject::Read(const std::string& path) {
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const auto bytes = file->bytes();
  return Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

absl::StatusOr<JsonObject> JsonObject::Parse(std::string_view text, const std::string& file) {
  if (text.empty()) return FileError(file, "JSON", "empty");
  const absl::Status checked = CheckJson(text, kLimits);
  if (!checked.ok()) return FileError(file, "JSON", checked);
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return FileError(file, "JSON", "syntax error");
  if (!value.is_object()) return FileError(file, "JSON", "not an object");
  return JsonObject(file, "", std::move(value));
}

bool JsonObject::Has(const std::string& key) const {
  const auto it = json_.find(key);
  return it != json_.end() && !it->is_null();
}

absl::Status JsonObject::Error(const std::string& key, std::string_view reason) const {
  return FileError(file_, prefix_ + key, reason);
}

absl::Status JsonObject::WrongType(const std::string& key, const char* want) const {
  if (!Has(key)) return Error(key, "missing");
  return Error(key, absl::StrCat(Shown(json_.at(key)), " is not ", want));
}

absl::StatusOr<int64_t> JsonObject::Int(const std::string& key, int64_t min, int64_t max) const {
  if (!Has(key) || !json_.at(key).is_number_integer()) return WrongType(key, "an integer");
  const Json& value = json_.at(key);
  const bool too_large = value.is_number_unsigned() &&
                         value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (too_large || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    return Error(key, absl::StrCat(Shown(value), " is not in ", min, "..", max));
  }
  return value.get<int64_t>();
}

absl::StatusOr<int64_t> JsonObject::IntOr(const std::string& key, int64_t absent, int64_t min,
                                          int64_t max) const {
  if (!Has(key)) return absent;
  return Int(key, min, max);
}

absl::StatusOr<double> JsonObject::Float(const std::string& key, double min, double max) const {
  if (!Has(key) || !json_.at(key).is_number()) return WrongType(key, "a number");
  const double value = json_.at(key).get<double>();
  if (!(value >= min && value <= max)) {
    return Error(key, absl::StrCat(value, " is not in ", min, "..", max));
  }
  return value;
}

absl::StatusOr<double> JsonObject::FloatOr(const std::string& key, double absent, double min,
                                           double max) const {
  if (!Has(key)) return absent;
  return Float(key, min, max);
}

absl::StatusOr<bool> JsonObject::BoolOr(const std::string& key, bool absent) const {
  if (!Has(key)) return absent;
  if (!json_.at(key).is_boolean()) return WrongType(key, "true or false");
  return json_.at(key).get<bool>();
}

absl::StatusOr<std::string> JsonObject::String(const std::string& key) const {
  if (!Has(key) || !json_.at(key).is_string()) return WrongType(key, "a string");
  return json_.at(key).get<std::string>();
}

absl::StatusOr<std::string> JsonObject::StringOr(const std::string& key,
                                                 const std::string& absent) const {
  if (!Has(key)) return absent;
  return String(key);
}

absl::StatusOr<JsonObject> JsonObject::Object(const std::string& key) const {
  if (!Has(key) || !json_.at(key).is_object()) return WrongType(key, "an object");
  return JsonObject(file_, prefix_ + key + ".", json_.at(key));
}

}  // namespace lynx
