// SPDX-License-Identifier: Apache-2.0
// "int8-channel": symmetric 8-bit codes with one BF16 scale per channel and block of 64 tokens.
//
// One plane. Per block of n tokens: u16 scale [head_dim] (BF16 patterns), then int8 codes in the
// order of the tile: [head_dim][n] for keys, [n][head_dim] for values. scale = absmax / 127, code =
// x / scale rounded to nearest even, value = code * scale. NaN counts as 0, Inf as the largest
// finite value; so are products that overflow.
#include <algorithm>
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr float kLimit = 127;

int16_t Magnitude(Bf16 x) { return static_cast<int16_t>(Finite(x).bits & 0x7fff); }

std::byte CodeOf(Bf16 x, float step) {
  return std::byte(
      static_cast<int8_t>(RoundToEven(std::clamp(ToFloat(Finite(x)) / step, -kLimit, kLimit))));
}

Bf16 ValueOf(std::byte code, float step) {
  return FiniteBf16(static_cast<float>(static_cast<int8_t>(code)) * step);
}

// A block of keys: every row has one scale.
LYNX_WIDE_LOOPS void EncodeKeys(const TileRows& rows, const Bf16* tile, Bf16* scale,
                                std::byte* out) {
  for (int c = 0; c < rows.num_rows; ++c, tile += rows.stride, out += rows.row_size) {
    int16_t absmax = 0;
    for (int i = 0; i < rows.row_size; ++i) absmax = std::max(absmax, Magnitude(tile[i]));
    scale[c] = ToBf16(ToFloat(Bf16{static_cast<uint16_t>(absmax)}) / kLimit);
    const float step = StepOf(scale[c]);
    for (int i = 0; i < rows.row_size; ++i) out[i] = CodeOf(tile[i], step);
  }
}
LYNX_WIDE_LOOPS void DecodeKeys(const TileRows& rows, const Bf16* scale, const std::byte* in,
                                Bf16* tile) {
  for (int c = 0; c < rows.num_rows; ++c, tile += rows.stride, in += rows.row_size) {
    const float step = ToFloat(scale[c]);  // 8 significant bits, so the products are exact
    for (int i = 0; i < rows.row_size; ++i) tile[i] = ValueOf(in[i], step);
  }
}

// A block of values: every row has all scales.
LYNX_WIDE_LOOPS void EncodeValues(const TileRows& rows, const Bf16* tile, Bf16* scale,
                                  std::byte* out) {
  int16_t absmax[kMaxHeadDim] = {};
  float step[kMaxHeadDim];
  for (int t = 0; t < rows.num_rows; ++t) {
    const Bf16* x = tile + t * rows.stride;
    for (int c = 0; c < rows.row_size; ++c) absmax[c] = std::max(absmax[c], Magnitude(x[c]));
  }
  for (int c = 0; c < rows.row_size; ++c) {
    scale[c] = ToBf16(ToFloat(Bf16{static_cast<uint16_t>(absmax[c])}) / kLimit);
    step[c] = StepOf(scale[c]);
  }
  for (int t = 0; t < rows.num_rows; ++t, tile += rows.stride, out += rows.row_size) {
    for (int c = 0; c < rows.row_size; ++c) out[c] = CodeOf(tile[c], step[c]);
  }
}
LYNX_WIDE_LOOPS void DecodeValues(const TileRows& rows, const Bf16* scale, const std::byte* in,
                                  Bf16* tile) {
  for (int t = 0; t < rows.num_rows; ++t, tile += rows.stride, in += rows.row_size) {
    for (int c = 0; c < rows.row_size; ++c) tile[c] = ValueOf(in[c], ToFloat(scale[c]));
  }
}

class ChannelScaledCodec final : public Codec {
 public:
  std::string_view name() const override { return "int8-channel"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    return static_cast<size_t>(shape.head_dim) *
           (shape.num_blocks() * sizeof(Bf16) + shape.num_tokens);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    Bf16 scale[kMaxHeadDim];
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      const auto encode = shape.kind == KvKind::kKey ? EncodeKeys : EncodeValues;
      encode(rows, tiles[b], scale, out + ScaleBytes(shape));
      std::memcpy(out, scale, ScaleBytes(shape));
      out += ScaleBytes(shape) + rows.size();
    }
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t want = MaxPlaneBytes(shape, 0);
    if (planes[0].size() != want) {
      ClearPage(shape, tiles);
      return WrongPlaneSize(name(), 0, planes[0].size(), want);
    }
    const std::byte* in = planes[0].data();
    Bf16 scale[kMaxHeadDim];
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      std::memcpy(scale, in, ScaleBytes(shape));
      if (!std::all_of(scale, scale + shape.head_dim,
                       [](Bf16 s) { return s.bits < kBf16Infinity; })) {
        ClearPage(shape, tiles);
        return WrongNumber(name(), "a scale is not a finite number above or equal to 0");
      }
      const auto decode = shape.kind == KvKind::kKey ? DecodeKeys : DecodeValues;
      decode(rows, scale, in + ScaleBytes(shape), tiles[b]);
      in += ScaleBytes(shape) + rows.size();
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"int8-channel", 8}};
  static size_t ScaleBytes(const PageShape& shape) { return shape.head_dim * sizeof(Bf16); }
};

}  // namespace

std::unique_ptr<Codec> MakeInt8ChannelCodec() { return std::make_unique<ChannelScaledCodec>(); }

}  // namespace lynx
