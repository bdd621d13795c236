// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <random>

#include "gtest/gtest.h"

namespace lynx {
namespace {

const std::string kFffd(kReplacementCharacter);

TEST(Utf8, ReplacesEveryMaximalInvalidPart) {
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"\xc3\xa9", "\xc3\xa9"},
      {"\x80", kFffd},
      {"\xc3", kFffd},
      {"\xc3\x28", kFffd + "("},
      {"\xe2\x82", kFffd},
      {"\xe2\x82(", kFffd + "("},
      {"\xf0\x9f\x98", kFffd},
      {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
      {"\xc0\xaf", kFffd + kFffd},                          // overlong
      {"\xe0\x80\xaf", kFffd + kFffd + kFffd},              // overlong
      {"\xed\xa0\x80", kFffd + kFffd + kFffd},              // surrogate
      {"\xf4\x90\x80\x80", kFffd + kFffd + kFffd + kFffd},  // above U+10FFFF
      {"\xf5\x80", kFffd + kFffd},
      {"\xff", kFffd},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(ToValidUtf8(bytes), expected);
    EXPECT_EQ(IsValidUtf8(bytes), bytes == expected);
  }
}

TEST(Utf8, EncodesAndDecodesEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    int length = 0;
    ASSERT_EQ(DecodeUtf8(text, &length), c);
    ASSERT_EQ(static_cast<size_t>(length), text.size());
  }
}

TEST(Utf8Gate, HoldsEveryCharacterCutAnywhere) {
  for (const std::string text : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    for (size_t cut = 1; cut < text.size(); ++cut) {
      Utf8Gate gate;
      std::string out;
      gate.Push(text.substr(0, cut), &out);
      EXPECT_EQ(out, "");
      gate.Push(text.substr(cut), &out);
      EXPECT_EQ(out, text);
      gate.Flush(&out);
      EXPECT_EQ(out, text);
    }
  }
}

TEST(Utf8Gate, AnyBytesInAnyPiecesGiveTheSameText) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string bytes(random() % 24, '\0');
    // Mostly lead and continuation bytes, where the difficult cases are.
    for (char& byte : bytes) {
      byte = static_cast<char>(random() % 4 == 0 ? random() : 0x80 + random() % 0x80);
    }
    Utf8Gate gate;
    std::string out;
    for (size_t at = 0; at < bytes.size();) {
      const size_t length = 1 + random() % 3;
      gate.Push(bytes.substr(at, length), &out);
      EXPECT_TRUE(IsValidUtf8(out));
      at += length;
    }
    gate.Flush(&out);
    EXPECT_EQ(out, ToValidUtf8(bytes));
    EXPECT_TRUE(IsValidUtf8(out));
  }
}

}  // namespace
}  // namespace lynx
