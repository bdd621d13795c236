// SPDX-License-Identifier: Apache-2.0
// "int4-kivi": asymmetric 4-bit codes, keys per channel and values per token, as KIVI (arXiv
// 2402.02750) lays them out, in groups of 32. Its window of recent tokens in full precision is left
// out: in a hand-off the decode side's own tokens are that window.
//
// One plane. Per block, the rows of the tile (for keys one row of tokens per channel, for values
// one row of channels per token); per row: {u16 lo, u16 scale} [num_groups] (BF16 patterns), then
// nibbles, the even element low, the last one padded with 0. A group is 32 consecutive elements of
// a row, or what is left of it. lo = min, scale = (max - min) / 15, code = (x - lo) / scale rounded
// to nearest even, value = lo + code * scale. NaN counts as 0, Inf as the largest finite value.
#include <algorithm>
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr int kGroup = 32;
constexpr float kLargestCode = 15;
constexpr size_t kGroupBytes = 2 * sizeof(Bf16);  // lo, scale

size_t NumGroups(int row_size) { return (row_size + kGroup - 1) / kGroup; }
size_t RowBytes(int row_size) { return NumGroups(row_size) * kGroupBytes + (row_size + 1) / 2; }

// An order of BF16 patterns as integers: that of the numbers, with -0 below +0.
int16_t OrderOf(Bf16 x) {
  const auto bits = static_cast<int16_t>(x.bits);
  return static_cast<int16_t>(bits ^ (bits >> 15 & 0x7fff));
}
Bf16 FromOrder(int16_t order) {
  return Bf16{static_cast<uint16_t>(order ^ (order >> 15 & 0x7fff))};
}

// x [size <= 32] -> codes, and lo and scale in front. In double, because hi - lo may exceed the
// largest float.
LYNX_WIDE_LOOPS void EncodeGroup(const Bf16* x, int size, std::byte* range, uint8_t* code) {
  int16_t least = INT16_MAX, greatest = INT16_MIN;
  for (int i = 0; i < size; ++i) {
    const int16_t order = OrderOf(Finite(x[i]));
    least = std::min(least, order);
    greatest = std::max(greatest, order);
  }
  const Bf16 lo = FromOrder(least);
  const double low = ToFloat(lo), high = ToFloat(FromOrder(greatest));
  const Bf16 scale = ToBf16(static_cast<float>((high - low) / kLargestCode));
  const double step = StepOf(scale);
  for (int i = 0; i < size; ++i) {
    const auto y = static_cast<float>((ToFloat(Finite(x[i])) - low) / step);
    code[i] = static_cast<uint8_t>(RoundToEven(std::min(y, kLargestCode)));
  }
  std::memcpy(range, &lo, sizeof(lo));
  std::memcpy(range + sizeof(lo), &scale, sizeof(scale));
}

// False when lo is not finite or scale not a finite number above or equal to 0.
LYNX_WIDE_LOOPS bool DecodeGroup(const std::byte* range, const uint8_t* code, int size, Bf16* x) {
  Bf16 lo, scale;
  std::memcpy(&lo, range, sizeof(lo));
  std::memcpy(&scale, range + sizeof(lo), sizeof(scale));
  if ((lo.bits & 0x7fff) >= kBf16Infinity || scale.bits >= kBf16Infinity) return false;
  const double low = ToFloat(lo), step = ToFloat(scale);
  for (int i = 0; i < size; ++i) x[i] = FiniteBf16(static_cast<float>(low + code[i] * step));
  return true;
}

class KiviCodec final : public Codec {
 public:
  std::string_view name() const override { return "int4-kivi"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    size_t bytes = 0;
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      bytes += rows.num_rows * RowBytes(rows.row_size);
    }
    return bytes;
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      for (int r = 0; r < rows.num_rows; ++r, out += RowBytes(rows.row_size)) {
        EncodeRow(tiles[b] + r * rows.stride, rows.row_size, out);
      }
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
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      for (int r = 0; r < rows.num_rows; ++r, in += RowBytes(rows.row_size)) {
        if (DecodeRow(in, rows.row_size, tiles[b] + r * rows.stride)) continue;
        ClearPage(shape, tiles);
        return WrongNumber(name(), "a group's minimum or scale is not such a number");
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"int4-kivi", 4}};

  LYNX_WIDE_LOOPS static void EncodeRow(const Bf16* x, int size, std::byte* out) {
    uint8_t code[kMaxHeadDim + 1];
    code[size] = 0;
    for (int begin = 0; begin < size; begin += kGroup, out += kGroupBytes) {
      EncodeGroup(x + begin, std::min(kGroup, size - begin), out, code + begin);
    }
    for (int i = 0; i < size; i += 2) out[i / 2] = std::byte(code[i] | code[i + 1] << 4);
  }

  LYNX_WIDE_LOOPS static bool DecodeRow(const std::byte* in, int size, Bf16* x) {
    uint8_t code[kMaxHeadDim + 1];
    const std::byte* nibbles = in + NumGroups(size) * kGroupBytes;
    for (int i = 0; i < size; i += 2) {
      const auto pair = std::to_integer<uint8_t>(nibbles[i / 2]);
      code[i] = pair & 15;
      code[i + 1] = pair >> 4;
    }
    for (int begin = 0; begin < size; begin += kGroup, in += kGroupBytes) {
      if (!DecodeGroup(in, code + begin, std::min(kGroup, size - begin), x + begin)) return false;
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<Codec> MakeInt4KiviCodec() { return std::make_unique<KiviCodec>(); }

}  // namespace lynx
