// SPDX-License-Identifier: Apache-2.0
// absl::StrCat for std::string_view, which Abseil takes only where its own string_view is an alias.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace lynx {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

template <typename T>
decltype(auto) StrCatArgument(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

template <typename... T>
std::string StrCat(const T&... parts) {
  return absl::StrCat(StrCatArgument(parts)...);
}

template <typename... T>
void StrAppend(std::string* out, const T&... parts) {
  absl::StrAppend(out, StrCatArgument(parts)...);
}

}  // namespace lynx
