// SPDX-License-Identifier: Apache-2.0
// The one form of a complaint about a file: one line "FILE: FIELD: reason".
#pragma once

#include <string>
#include <string_view>

#include "lynx/status.h"

namespace lynx {

// kInvalidArgument.
absl::Status FileError(std::string_view path, std::string_view field, std::string_view reason);
absl::Status FileError(std::string_view path, std::string_view field, const absl::Status& why);

// A string from a file as it may stand in a message: escaped, and cut when unreasonably long.
std::string Printable(std::string_view text);

}  // namespace lynx
