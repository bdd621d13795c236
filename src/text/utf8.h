// SPDX-License-Identifier: Apache-2.0
// UTF-8 as bytes arrive: what is a character, what is only the beginning of one, what never was.
#pragma once

#include <string>
#include <string_view>

namespace lynx {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// What stands at the front of a byte string.
struct Utf8Step {
  enum Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind = kInvalid;
  int length = 0;           // bytes of the character, of the maximal invalid part, or of the rest
  char32_t code_point = 0;  // kCharacter only
};

// `text` is not empty. Overlong forms, surrogates and values above U+10FFFF are invalid; an invalid
// part is as long as it could still have become a character (Unicode 3.9, "maximal subpart").
Utf8Step NextUtf8(std::string_view text);

// The code point at the front of valid UTF-8; *length receives its bytes.
char32_t DecodeUtf8(std::string_view text, int* length);

void AppendUtf8(char32_t code_point, std::string* out);

bool IsValidUtf8(std::string_view text);

// Every maximal invalid part becomes one U+FFFD.
std::string ToValidUtf8(std::string_view text);

// Passes bytes on as soon as they make whole characters; holds an incomplete tail. The pieces
// joined, with Flush, equal ToValidUtf8 of all bytes.
class Utf8Gate {
 public:
  void Push(std::string_view bytes, std::string* out);
  void Flush(std::string* out);

 private:
  std::string held_;  // at most 3 bytes: the beginning of one character
};

}  // namespace lynx
