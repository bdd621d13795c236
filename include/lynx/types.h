// SPDX-License-Identifier: Apache-2.0
// The smallest words of the vocabulary: ids, BF16, and the two kinds of KV.
#pragma once

#include <bit>
#include <compare>
#include <cstdint>

namespace lynx {

using TokenId = int32_t;
using BlockId = int32_t;  // index into the KV pool

// Tokens of one KV block. A group of the plane format, an attention step and a prefix-cache entry
// all span exactly one block.
inline constexpr int kBlockSize = 64;

enum class KvKind : uint8_t { kKey = 0, kValue = 1 };

// One try at handing a sequence's KV over. Fresh and unguessable for every try (also a retry), so
// that a late byte of an earlier try can never be taken for one of this.
struct AttemptId {
  uint64_t hi = 0;
  uint64_t lo = 0;
  auto operator<=>(const AttemptId&) const = default;
};

// bfloat16: the upper half of a float32. Rounds to nearest even; NaN stays NaN.
struct Bf16 {
  uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

constexpr float ToFloat(Bf16 v) { return std::bit_cast<float>(uint32_t{v.bits} << 16); }

constexpr Bf16 ToBf16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return Bf16{static_cast<uint16_t>((u >> 16) | 0x40)};
  u += 0x7fffu + ((u >> 16) & 1u);
  return Bf16{static_cast<uint16_t>(u >> 16)};
}

}  // namespace lynx
