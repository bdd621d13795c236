// SPDX-License-Identifier: Apache-2.0
// The codec of the Lynx paper (arXiv 2607.01831, Algorithm 1), with the repairs that it needs to be
// decodable: the sign is that of the centred value, log magnitudes are scaled to 120 so that there
// are exactly 8 bins of 16 residuals, and the zero bin reconstructs to its centre, with the sign.
//
// Per channel and page: lo = min, hi = max. Chunks of 32 tokens: u = (x - lo) / (hi - lo) is
// centred by the chunk's mean (8 bits) and scaled by the largest magnitude (8 bits, rounded up) to
// y.
//   I = round(120 ln(1 + 5 |y|) / ln 6)    0 .. 120
//   V = (I + 7) / 16                        0 .. 7: anchor nibble = V, plus 8 when y < 0
//   16 V - I                               -8 .. 7: residual nibble = that plus 8
// The anchor alone reads I as 16 V, or as 4 when V = 0.
//
// Plane 0: u16 lo [head_dim], u16 hi [head_dim] (BF16 patterns); per chunk u8 mean [head_dim],
//          u8 scale [head_dim]; anchor nibbles [num_tokens][head_dim], even channel low.
// Plane 1: residual nibbles, the same way.
// NaN counts as 0, Inf as the largest finite value.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/codecs.h"
#include "codec/tile_access.h"

namespace lynx {
namespace {

constexpr int kChunk = 32;
constexpr int kMaxChunks = kPageTokens / kChunk;
constexpr double kAlpha = 5;
constexpr int kMaxMagnitude = 120;
constexpr int kZeroBinCentre = 4;

// The companding curve as tables, so that no element costs a logarithm.
class Companding {
 public:
  Companding() {
    for (int i = 0; i <= kMaxMagnitude; ++i) threshold_[i] = static_cast<float>(Inverse(i - 0.5));
    for (int anchor = 0; anchor < 16; ++anchor) {
      const int bin = anchor & 7;
      anchor_value_[anchor] = Signed(anchor, bin == 0 ? kZeroBinCentre : 16 * bin);
      for (int residual = 0; residual < 16; ++residual) {
        value_[anchor + 16 * residual] = Signed(anchor, 16 * bin - residual + 8);
      }
    }
    threshold_[kMaxMagnitude + 1] = std::numeric_limits<float>::infinity();
    for (int i = 0, magnitude = 0; i <= kBuckets; ++i) {
      const float y = static_cast<float>(i) / kBuckets;
      while (threshold_[magnitude + 1] <= y) ++magnitude;
      bucket_[i] = static_cast<uint8_t>(magnitude);
    }
  }

  // I of |y|, 0 <= y <= 1. A bucket is narrower than any step of I.
  int Magnitude(float y) const {
    const int i = bucket_[static_cast<int>(y * kBuckets)];
    return i + (threshold_[i + 1] <= y);
  }
  // y of anchor nibble + 16 x residual nibble.
  float Value(int code) const { return value_[code]; }
  // y of an anchor nibble alone.
  float AnchorValue(int nibble) const { return anchor_value_[nibble]; }

 private:
  static constexpr int kBuckets = 1024;
  static double Inverse(double magnitude) {
    return std::expm1(magnitude / kMaxMagnitude * std::log1p(kAlpha)) / kAlpha;
  }
  static float Signed(int anchor, int magnitude) {
    const auto y = static_cast<float>(Inverse(magnitude));
    return (anchor & 8) != 0 ? -y : y;
  }

  std::array<float, kMaxMagnitude + 2> threshold_;  // the smallest y with that I
  std::array<float, 256> value_;
  std::array<float, 16> anchor_value_;
  std::array<uint8_t, kBuckets + 1> bucket_;
};

struct Channel {
  Bf16 lo, hi;
  std::array<uint8_t, kMaxChunks> mean, scale;
};

// Places of a channel's numbers in plane 0.
struct Layout {
  explicit Layout(const PageShape& shape)
      : head_dim(shape.head_dim), num_chunks((shape.num_tokens + kChunk - 1) / kChunk) {}
  size_t chunk(int i) const { return size_t{4} * head_dim + size_t{2} * head_dim * i; }
  size_t codes() const { return chunk(num_chunks); }
  int head_dim;
  int num_chunks;
};

void PutChannel(const Layout& layout, int c, const Channel& channel, std::byte* plane) {
  std::memcpy(plane + c * sizeof(Bf16), &channel.lo, sizeof(Bf16));
  std::memcpy(plane + (layout.head_dim + c) * sizeof(Bf16), &channel.hi, sizeof(Bf16));
  for (int i = 0; i < layout.num_chunks; ++i) {
    plane[layout.chunk(i) + c] = std::byte{channel.mean[i]};
    plane[layout.chunk(i) + layout.head_dim + c] = std::byte{channel.scale[i]};
  }
}

Channel GetChannel(const Layout& layout, int c, const std::byte* plane) {
  Channel channel;
  std::memcpy(&channel.lo, plane + c * sizeof(Bf16), sizeof(Bf16));
  std::memcpy(&channel.hi, plane + (layout.head_dim + c) * sizeof(Bf16), sizeof(Bf16));
  for (int i = 0; i < layout.num_chunks; ++i) {
    channel.mean[i] = std::to_integer<uint8_t>(plane[layout.chunk(i) + c]);
    channel.scale[i] = std::to_integer<uint8_t>(plane[layout.chunk(i) + layout.head_dim + c]);
  }
  return channel;
}

void OrNibble(std::byte* codes, int head_dim, int c, int t, int nibble) {
  codes[(static_cast<size_t>(t) * head_dim + c) / 2] |= std::byte(nibble << (c % 2 * 4));
}
int GetNibble(const std::byte* codes, int head_dim, int c, int t) {
  return std::to_integer<int>(codes[(static_cast<size_t>(t) * head_dim + c) / 2] >> (c % 2 * 4)) &
         15;
}

class PaperCodec final : public Codec {
 public:
  std::string_view name() const override { return "paper"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int plane) const override {
    const size_t codes = static_cast<size_t>(shape.num_tokens) * shape.head_dim / 2;
    return plane == 0 ? Layout(shape).codes() + codes : codes;
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    std::byte* out[2];
    for (int p = 0; p < 2; ++p) {
      const size_t begin = planes[p].size();
      planes[p].resize(begin + MaxPlaneBytes(shape, p));
      out[p] = planes[p].data() + begin;
    }
    for (int c = 0; c < shape.head_dim; ++c) EncodeChannel(shape, tiles, c, out[0], out[1]);
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    for (size_t p = 0; p < planes.size(); ++p) {
      const size_t want = MaxPlaneBytes(shape, static_cast<int>(p));
      if (planes[p].size() == want) continue;
      ClearPage(shape, tiles);
      return WrongPlaneSize(name(), static_cast<int>(p), planes[p].size(), want);
    }
    const std::byte* residual = planes.size() > 1 ? planes[1].data() : nullptr;
    for (int c = 0; c < shape.head_dim; ++c) {
      if (DecodeChannel(shape, tiles, c, planes[0].data(), residual)) continue;
      ClearPage(shape, tiles);
      return absl::DataLossError(
          absl::StrCat("codec paper: channel ", c, " has no finite minimum below its maximum"));
    }
    return absl::OkStatus();
  }

 private:
  void EncodeChannel(const PageShape& shape, const PageTiles& tiles, int c, std::byte* anchor,
                     std::byte* residual) const;
  bool DecodeChannel(const PageShape& shape, const MutablePageTiles& tiles, int c,
                     const std::byte* anchor, const std::byte* residual) const;

  static constexpr PlaneSpec kPlanes[] = {{"anchor4", 4}, {"residual4", 4}};
  Companding companding_;
};

void PaperCodec::EncodeChannel(const PageShape& shape, const PageTiles& tiles, int c,
                               std::byte* anchor, std::byte* residual) const {
  const Layout layout(shape);
  float x[kPageTokens];
  for (int t = 0; t < shape.num_tokens; ++t) x[t] = FiniteFloat(At(shape, tiles, c, t));
  const auto [least, greatest] = std::minmax_element(x, x + shape.num_tokens);
  // In double, because hi - lo of BF16 may exceed the largest float.
  const double lo = *least, range = double{*greatest} - lo;
  const double per_range = range > 0 ? 1 / range : 0.0;
  Channel channel{ToBf16(*least), ToBf16(*greatest), {}, {}};
  for (int i = 0; i < layout.num_chunks; ++i) {
    const int begin = i * kChunk, end = std::min(begin + kChunk, shape.num_tokens);
    double u[kChunk], sum = 0, largest = 0;
    for (int t = begin; t < end; ++t) {
      u[t - begin] = (x[t] - lo) * per_range;
      sum += u[t - begin];
    }
    channel.mean[i] = static_cast<uint8_t>(std::floor(sum / (end - begin) * 255 + 0.5));
    const double mean = channel.mean[i] / 255.0;
    for (int t = begin; t < end; ++t) largest = std::max(largest, std::abs(u[t - begin] - mean));
    channel.scale[i] = static_cast<uint8_t>(std::clamp(std::ceil(largest * 255), 1.0, 255.0));
    const double scale = 255.0 / channel.scale[i];
    for (int t = begin; t < end; ++t) {
      const double y = (u[t - begin] - mean) * scale;
      const int magnitude = companding_.Magnitude(static_cast<float>(std::min(std::abs(y), 1.0)));
      const int bin = (magnitude + 7) / 16;
      OrNibble(anchor + layout.codes(), shape.head_dim, c, t, bin | (y < 0 ? 8 : 0));
      OrNibble(residual, shape.head_dim, c, t, 16 * bin - magnitude + 8);
    }
  }
  PutChannel(layout, c, channel, anchor);
}

bool PaperCodec::DecodeChannel(const PageShape& shape, const MutablePageTiles& tiles, int c,
                               const std::byte* anchor, const std::byte* residual) const {
  const Layout layout(shape);
  const Channel channel = GetChannel(layout, c, anchor);
  const double lo = ToFloat(channel.lo), range = ToFloat(channel.hi) - lo;
  if (!std::isfinite(range) || range < 0) return false;
  for (int i = 0; i < layout.num_chunks; ++i) {
    // x = y a + b in double, because hi - lo may exceed the largest float.
    const double a = channel.scale[i] / 255.0 * range, b = channel.mean[i] / 255.0 * range + lo;
    const int end = std::min((i + 1) * kChunk, shape.num_tokens);
    for (int t = i * kChunk; t < end; ++t) {
      const int nibble = GetNibble(anchor + layout.codes(), shape.head_dim, c, t);
      const float y =
          residual == nullptr
              ? companding_.AnchorValue(nibble)
              : companding_.Value(nibble + 16 * GetNibble(residual, shape.head_dim, c, t));
      At(shape, tiles, c, t) = FiniteBf16(y * a + b);
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<Codec> MakePaperCodec() { return std::make_unique<PaperCodec>(); }

}  // namespace lynx
