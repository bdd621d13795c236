// SPDX-License-Identifier: Apache-2.0
#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace lynx {
namespace {

// Printable Latin-1 stands for itself, the other 68 bytes are U+0100 and up, in order.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteLevelTable {
  std::array<char32_t, 256> character{};
  std::array<int, 0x144> byte{};  // -1: stands for no byte
};

constexpr ByteLevelTable MakeTable() {
  ByteLevelTable table;
  for (int& byte : table.byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    table.character[byte] = c;
    table.byte[c] = byte;
  }
  return table;
}

constexpr ByteLevelTable kTable = MakeTable();

}  // namespace

char32_t ByteLevelCharacter(uint8_t byte) { return kTable.character[byte]; }

std::optional<std::string> FromByteLevel(std::string_view text) {
  std::string bytes;
  for (int length = 0; !text.empty(); text.remove_prefix(length)) {
    const char32_t c = DecodeUtf8(text, &length);
    if (c >= kTable.byte.size() || kTable.byte[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kTable.byte[c]));
  }
  return bytes;
}

}  // namespace lynx
