// SPDX-License-Identifier: Apache-2.0
#include "formats/file_error.h"

#include "absl/strings/escaping.h"

namespace lynx {

absl::Status FileError(std::string_view path, std::string_view field, std::string_view reason) {
  std::string message(path);
  message.append(": ").append(field).append(": ").append(reason);
  return absl::InvalidArgumentError(message);
}

absl::Status FileError(std::string_view path, std::string_view field, const absl::Status& why) {
  return FileError(path, field, std::string(why.message()));
}

std::string Printable(std::string_view text) {
  constexpr size_t kMaxShown = 96;
  if (text.size() <= kMaxShown) return absl::Utf8SafeCEscape(std::string(text));
  return absl::StrCat(absl::CHexEscape(std::string(text.substr(0, kMaxShown))), "… (", text.size(),
                      " bytes)");
}

}  // namespace lynx
