// SPDX-License-Identifier: Apache-2.0
// GPT-2's spelling of bytes as printable characters ("Ġ" is the space), in which byte-level
// vocabularies are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lynx {

// The character that stands for a byte.
char32_t ByteLevelCharacter(uint8_t byte);

// The bytes that `text` (valid UTF-8) spells; nullopt when a character in it stands for none.
std::optional<std::string> FromByteLevel(std::string_view text);

}  // namespace lynx
