// SPDX-License-Identifier: Apache-2.0
// What the JSON library lets through and a reader must not: bottomless nesting, duplicate keys,
// objects too large to search.
#pragma once

#include <cstddef>
#include <limits>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

struct JsonLimits {
  size_t max_depth = 0;  // of objects and lists inside each other
  size_t max_num_members = std::numeric_limits<size_t>::max();  // of one object
  bool unique_keys = false;                                     // in one object
};

// Reads a text without keeping it, before a parser does: a parse with a callback could check the
// same, but takes quadratic time. kInvalidArgument names the limit that the text exceeds. A text
// that is not JSON passes when nothing before its first error does: its parser has the words for
// that. As fast as parsing.
absl::Status CheckJson(std::string_view text, const JsonLimits& limits);

}  // namespace lynx
