// SPDX-License-Identifier: Apache-2.0
// Element access for the codecs that work token by token.
#pragma once

#include <algorithm>

#include "lynx/codec.h"

namespace lynx {

constexpr size_t TileElement(KvKind kind, int head_dim, int channel, int token) {
  return kind == KvKind::kKey ? static_cast<size_t>(channel) * kBlockSize + token
                              : static_cast<size_t>(token) * head_dim + channel;
}

// Element (channel, token of the page).
inline const Bf16& At(const PageShape& shape, const PageTiles& tiles, int channel, int token) {
  return tiles[token / kBlockSize]
              [TileElement(shape.kind, shape.head_dim, channel, token % kBlockSize)];
}
inline Bf16& At(const PageShape& shape, const MutablePageTiles& tiles, int channel, int token) {
  return tiles[token / kBlockSize]
              [TileElement(shape.kind, shape.head_dim, channel, token % kBlockSize)];
}

inline constexpr uint16_t kBf16Infinity = 0x7f80;

// The value as a finite float: NaN is 0, Inf the largest finite BF16 value of its sign.
inline float FiniteFloat(Bf16 v) {
  const uint16_t magnitude = v.bits & 0x7fff;
  if (magnitude < kBf16Infinity) return ToFloat(v);
  if (magnitude > kBf16Infinity) return 0.0f;
  return ToFloat(Bf16{static_cast<uint16_t>(v.bits - 1)});
}

// Rounds a number, however large, to a finite BF16 value.
inline Bf16 FiniteBf16(double x) {
  constexpr double kMax = 0x1.fep127;  // the largest finite BF16 value
  return ToBf16(static_cast<float>(std::clamp(x, -kMax, kMax)));
}

// Sets every slot of the page to +0.
void ClearPage(const PageShape& shape, const MutablePageTiles& tiles);

// kDataLoss that names the codec, the plane and both sizes.
absl::Status WrongPlaneSize(std::string_view codec, int plane, size_t have, size_t want);

}  // namespace lynx
