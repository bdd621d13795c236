// SPDX-License-Identifier: Apache-2.0
#include "text/ordered_json.h"

#include <vector>

namespace lynx {
namespace {

constexpr size_t kMaxDepth = 128;
constexpr int kMaxMembers = 512;

// Walks over the text once, outside strings only. The library's own hook for this, a callback,
// would take quadratic time: after each object it looks through all that its parent holds.
absl::Status CheckShape(std::string_view text) {
  std::vector<int> num_members;  // of each object that is open; 0 for a list
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') num_members.push_back(0);
    if (num_members.size() > kMaxDepth) return absl::InvalidArgumentError("nested too deeply");
    if (num_members.empty()) continue;
    if (c == '}' || c == ']') num_members.pop_back();
    if (c == ':' && ++num_members.back() > kMaxMembers) {
      return absl::InvalidArgumentError(
          absl::StrCat("an object has more than ", kMaxMembers, " members"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text) {
  LYNX_RETURN_IF_ERROR(CheckShape(text));
  try {
    return OrderedJson::parse(text);
  } catch (const OrderedJson::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace lynx
