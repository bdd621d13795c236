// SPDX-License-Identifier: Apache-2.0
#include "text/utf8.h"

#include <algorithm>

namespace lynx {
namespace {

// The lead byte fixes the length and, for some, a narrower range of the second byte.
struct Lead {
  int length = 0;  // 0: no lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const Lead lead = LeadOf(bytes[0]);
  if (lead.length == 0) return {Utf8Step::kInvalid, 1};
  if (lead.length == 1) return {Utf8Step::kCharacter, 1, bytes[0]};
  char32_t code_point = bytes[0] & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Step::kIncomplete, i};
    const uint8_t low = i == 1 ? lead.second_min : 0x80;
    const uint8_t high = i == 1 ? lead.second_max : 0xBF;
    if (bytes[i] < low || bytes[i] > high) return {Utf8Step::kInvalid, i};
    code_point = (code_point << 6) | (bytes[i] & 0x3F);
  }
  return {Utf8Step::kCharacter, lead.length, code_point};
}

char32_t DecodeUtf8(std::string_view text, int* length) {
  const Utf8Step step = NextUtf8(text);
  *length = step.length;
  return step.code_point;
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
  } else {
    if (c < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    } else {
      out->push_back(static_cast<char>(0xF0 | (c >> 18)));
      out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::kCharacter) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string ToValidUtf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  Utf8Gate gate;
  gate.Push(text, &out);
  gate.Flush(&out);
  return out;
}

void Utf8Gate::Push(std::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_ + std::string(bytes);
    bytes = joined;
    held_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind == Utf8Step::kIncomplete) {
      held_ = bytes;
      return;
    }
    out->append(step.kind == Utf8Step::kCharacter ? bytes.substr(0, step.length)
                                                  : kReplacementCharacter);
    bytes.remove_prefix(step.length);
  }
}

void Utf8Gate::Flush(std::string* out) {
  if (!held_.empty()) out->append(kReplacementCharacter);
  held_.clear();
}

}  // namespace lynx
