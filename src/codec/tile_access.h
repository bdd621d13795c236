// SPDX-License-Identifier: Apache-2.0
// Element access for the codecs that work token by token.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/common/page_tiles.h"
#include "lynx/codec.h"

namespace lynx {

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

// The value made finite: NaN is 0, Inf the largest finite value of its sign.
inline Bf16 Finite(Bf16 v) {
  const uint16_t magnitude = v.bits & 0x7fff;
  const uint16_t number = magnitude > kBf16Infinity ? 0 : v.bits;
  return Bf16{static_cast<uint16_t>(number - (magnitude == kBf16Infinity))};
}

// Rounds a number or infinity to a finite BF16 value.
inline Bf16 FiniteBf16(float x) {
  constexpr float kMax = 0x1.fep127f;  // the largest finite BF16 value
  // As ToBf16, without its check for NaN, which would cost a quarter of a decoder's time.
  const auto u = std::bit_cast<uint32_t>(std::clamp(x, -kMax, kMax));
  return Bf16{static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}

// Rounds a small number to an integer, ties to even.
inline float RoundToEven(float x) {
  constexpr float kRounder = 0x1.8p23f;  // its last place is 1
  return (x + kRounder) - kRounder;
}

// What to divide by for a scale: all codes of a zero scale are 0.
inline float StepOf(Bf16 scale) { return scale.bits == 0 ? 1.0f : ToFloat(scale); }

// The part of a tile that holds a block's tokens, as contiguous rows: for keys one row of tokens
// per channel, for values one row of channels per token.
struct TileRows {
  int num_rows = 0;
  int row_size = 0;
  int stride = 0;  // elements from one row to the next
  size_t size() const { return static_cast<size_t>(num_rows) * row_size; }
};
inline TileRows RowsOf(const PageShape& shape, int block) {
  const int num_tokens = std::min(kBlockSize, shape.num_tokens - block * kBlockSize);
  if (shape.kind == KvKind::kKey) return {shape.head_dim, num_tokens, kBlockSize};
  return {num_tokens, shape.head_dim, shape.head_dim};
}

// Copies the channels of one token out of and into its tile: [head_dim], at most kMaxHeadDim.
void ReadToken(const PageShape& shape, const PageTiles& tiles, int token, Bf16* channels);
void WriteToken(const PageShape& shape, const MutablePageTiles& tiles, int token,
                const Bf16* channels);

// kDataLoss that names the codec, the plane and both sizes.
absl::Status WrongPlaneSize(std::string_view codec, int plane, size_t have, size_t want);
// kDataLoss that names the codec and what is wrong.
absl::Status WrongNumber(std::string_view codec, std::string_view what);

}  // namespace lynx
