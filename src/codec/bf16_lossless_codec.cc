// SPDX-License-Identifier: Apache-2.0
// "bf16-lossless": the fields of BF16 apart, the exponents entropy-coded. The honest 16-bit
// baseline: signs and mantissas of KV are noise, exponents take few values.
//
// One plane: u8 base [head_dim], the largest exponent field of each channel in the page; u8 sign in
// bit 7 and mantissa below, per element; one Zstandard frame that holds u8 (base - exponent) per
// element. Elements are in the order of the tiles, block after block: [head_dim][n] for keys,
// [n][head_dim] for values, n the block's tokens. Taken from the base, exponents have nearly the
// same distribution in every channel, so one table serves them all.
#define ZSTD_STATIC_LINKING_ONLY  // for ZSTD_c_literalCompressionMode
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// A level so fast that it looks for no repeats, which exponents do not have: what they would cost
// more than they save is half a bit per element.
constexpr int kZstdLevel = -100;
constexpr uint8_t kMantissaMask = 0x7f;

uint8_t ExponentOf(Bf16 x) { return static_cast<uint8_t>(x.bits >> 7); }

// base [head_dim]: raises it to the exponents of a block.
LYNX_WIDE_LOOPS void RaiseBase(KvKind kind, const TileRows& rows, const Bf16* tile, uint8_t* base) {
  for (int r = 0; r < rows.num_rows; ++r, tile += rows.stride) {
    if (kind == KvKind::kValue) {
      for (int c = 0; c < rows.row_size; ++c) base[c] = std::max(base[c], ExponentOf(tile[c]));
      continue;
    }
    uint8_t largest = 0;
    for (int i = 0; i < rows.row_size; ++i) largest = std::max(largest, ExponentOf(tile[i]));
    base[r] = std::max(base[r], largest);
  }
}

LYNX_WIDE_LOOPS void SplitRow(const Bf16* x, int size, const uint8_t* base, uint8_t* rest,
                              uint8_t* below) {
  for (int i = 0; i < size; ++i) {
    rest[i] = static_cast<uint8_t>((x[i].bits >> 8 & ~kMantissaMask) | (x[i].bits & kMantissaMask));
    below[i] = static_cast<uint8_t>(base[i] - ExponentOf(x[i]));
  }
}

// False when an exponent is below 0.
LYNX_WIDE_LOOPS bool JoinRow(const uint8_t* base, const uint8_t* rest, const uint8_t* below,
                             int size, Bf16* x) {
  int num_wrong = 0;
  for (int i = 0; i < size; ++i) {
    num_wrong += below[i] > base[i];
    const int exponent = (base[i] - below[i]) & 0xff;
    x[i].bits = static_cast<uint16_t>((rest[i] & ~kMantissaMask) << 8 | exponent << 7 |
                                      (rest[i] & kMantissaMask));
  }
  return num_wrong == 0;
}

// The base of every element of row r.
const uint8_t* RowBase(KvKind kind, const uint8_t* base, int r, uint8_t* constant) {
  if (kind == KvKind::kValue) return base;
  std::fill_n(constant, kBlockSize, base[r]);
  return constant;
}

// Writes one frame of Huffman-coded bytes into out, and says how long it is.
size_t Compress(std::span<const uint8_t> bytes, std::span<uint8_t> out) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  LYNX_CHECK(context != nullptr);
  // A library without these parameters writes a longer frame, which is as good.
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kZstdLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  const size_t size =
      ZSTD_compress2(context.get(), out.data(), out.size(), bytes.data(), bytes.size());
  LYNX_CHECK(!ZSTD_isError(size));  // only memory or room could be missing
  return size;
}

// Exactly one frame, of exactly this size.
bool Decompress(std::span<const std::byte> frame, std::span<uint8_t> out) {
  return ZSTD_findFrameCompressedSize(frame.data(), frame.size()) == frame.size() &&
         ZSTD_decompress(out.data(), out.size(), frame.data(), frame.size()) == out.size();
}

class Bf16LosslessCodec final : public Codec {
 public:
  std::string_view name() const override { return "bf16-lossless"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return true; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    return shape.head_dim + NumElements(shape) + ZSTD_compressBound(NumElements(shape));
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    auto* base = reinterpret_cast<uint8_t*>(planes[0].data() + begin);
    for (int b = 0; b < shape.num_blocks(); ++b) {
      RaiseBase(shape.kind, RowsOf(shape, b), tiles[b], base);
    }
    uint8_t* rest = base + shape.head_dim;
    std::vector<uint8_t> below(NumElements(shape));
    size_t at = 0;
    uint8_t constant[kBlockSize];
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      for (int r = 0; r < rows.num_rows; ++r, at += rows.row_size) {
        SplitRow(tiles[b] + r * rows.stride, rows.row_size, RowBase(shape.kind, base, r, constant),
                 rest + at, below.data() + at);
      }
    }
    const size_t bytes = Compress(below, {rest + at, ZSTD_compressBound(at)});
    planes[0].resize(begin + shape.head_dim + at + bytes);
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t fixed = shape.head_dim + NumElements(shape);
    if (planes[0].size() <= fixed) {
      ClearPage(shape, tiles);
      return WrongPlaneSize(name(), 0, planes[0].size(), fixed);
    }
    std::vector<uint8_t> below(NumElements(shape));
    if (!Decompress(planes[0].subspan(fixed), below)) {
      ClearPage(shape, tiles);
      return WrongNumber(name(), "the exponents are not one Zstandard frame of the page's size");
    }
    const auto* base = reinterpret_cast<const uint8_t*>(planes[0].data());
    const uint8_t* rest = base + shape.head_dim;
    size_t at = 0;
    uint8_t constant[kBlockSize];
    for (int b = 0; b < shape.num_blocks(); ++b) {
      const TileRows rows = RowsOf(shape, b);
      for (int r = 0; r < rows.num_rows; ++r, at += rows.row_size) {
        if (JoinRow(RowBase(shape.kind, base, r, constant), rest + at, below.data() + at,
                    rows.row_size, tiles[b] + r * rows.stride)) {
          continue;
        }
        ClearPage(shape, tiles);
        return WrongNumber(name(), "an exponent is below 0");
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"bf16-lossless", 0}};

  static size_t NumElements(const PageShape& shape) {
    return static_cast<size_t>(shape.num_tokens) * shape.head_dim;
  }
};

}  // namespace

std::unique_ptr<Codec> MakeBf16LosslessCodec() { return std::make_unique<Bf16LosslessCodec>(); }

}  // namespace lynx
