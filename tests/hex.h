// SPDX-License-Identifier: Apache-2.0
// Bytes as test vectors spell them: lower-case hexadecimal digits.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace lynx {

inline std::string Hex(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const std::byte b : bytes) {
    hex += kDigits[std::to_integer<int>(b >> 4)];
    hex += kDigits[std::to_integer<int>(b & std::byte{15})];
  }
  return hex;
}

inline std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace lynx
