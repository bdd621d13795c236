// SPDX-License-Identifier: Apache-2.0
#include "formats/json_guard.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/file_error.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

class Guard final : public nlohmann::json_sax<Json> {
 public:
  explicit Guard(const JsonLimits& limits) : limits_(limits) {}

  absl::Status TakeComplaint() { return std::move(complaint_); }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Enter(); }
  bool key(string_t& key) override {
    Nest& object = open_.back();
    if (++object.num_members > limits_.max_num_members) {
      return Complain(
          absl::StrCat("an object has more than ", limits_.max_num_members, " members"));
    }
    if (!limits_.unique_keys || object.keys.insert(key).second) return true;
    return Complain("duplicate key " + Printable(key));
  }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  struct Nest {  // an object or a list that is open
    size_t num_members = 0;
    std::set<std::string> keys;
  };

  bool Enter() {
    open_.emplace_back();
    return open_.size() <= limits_.max_depth || Complain("nested too deeply");
  }
  bool Leave() {
    open_.pop_back();
    return true;
  }
  bool Complain(const std::string& complaint) {
    complaint_ = absl::InvalidArgumentError(complaint);
    return false;
  }

  const JsonLimits& limits_;
  std::vector<Nest> open_;
  absl::Status complaint_;
};

}  // namespace

absl::Status CheckJson(std::string_view text, const JsonLimits& limits) {
  Guard guard(limits);
  Json::sax_parse(text.begin(), text.end(), &guard);
  return guard.TakeComplaint();
}

}  // namespace lynx
