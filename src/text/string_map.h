// SPDX-License-Identifier: Apache-2.0
// A hash map from strings that is asked with views, without a copy.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lynx {

struct StringViewHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

template <typename T>
using StringMap = std::unordered_map<std::string, T, StringViewHash, std::equal_to<>>;

}  // namespace lynx
