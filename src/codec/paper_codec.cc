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
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

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
    for (int anchor = 0; anchor < 16; ++anchor) {
      const int bin = anchor & 7;
      anchor_values_[anchor] = Signed(anchor, bin == 0 ? kZeroBinCentre : 16 * bin);
      for (int residual = 0; residual < 16; ++residual) {
        values_[anchor + 16 * residual] = Signed(anchor, 16 * bin - residual + 8);
      }
    }
    for (int i = 0, magnitude = 0; i < kBuckets; ++i) {
      while (Threshold(magnitude + 1) * kScale <= static_cast<float>(i)) ++magnitude;
      const uint16_t below = PositiveCode(magnitude), above = PositiveCode(magnitude + 1);
      const auto step = std::bit_cast<uint32_t>(Threshold(magnitude + 1));
      buckets_[i] = {step, {below, above}};
      buckets_[kBuckets + i] = {step, {uint16_t(below | 8), uint16_t(above | 8)}};
    }
  }

  // Where the code of -1 <= y <= 1 is looked up.
  static int BucketOf(float y) {
    return static_cast<int>(std::abs(y) * kScale) + (y < 0 ? kBuckets : 0);
  }
  // Anchor nibble + 256 x residual nibble of |y|. A bucket is narrower than any step of I, so it
  // holds one at most.
  int Code(float magnitude, int bucket_of_y) const {
    const Bucket& bucket = buckets_[bucket_of_y];
    return bucket.codes[std::bit_cast<uint32_t>(magnitude) >= bucket.step];
  }
  // y of anchor nibble + 16 x residual nibble, and of an anchor nibble alone.
  const float* values() const { return values_.data(); }
  const float* anchor_values() const { return anchor_values_.data(); }

 private:
  static constexpr int kScale = 1024, kBuckets = kScale + 1;
  struct Bucket {
    uint32_t step;  // where I grows by one: the bits of the float, which have its order
    std::array<uint16_t, 2> codes;  // below and from there on
  };
  static double Inverse(double magnitude) {
    return std::expm1(magnitude / kMaxMagnitude * std::log1p(kAlpha)) / kAlpha;
  }
  // The smallest y with that I.
  static float Threshold(int magnitude) {
    if (magnitude > kMaxMagnitude) return std::numeric_limits<float>::infinity();
    return static_cast<float>(Inverse(magnitude - 0.5));
  }
  static uint16_t PositiveCode(int magnitude) {
    const int bin = (magnitude + 7) / 16;
    return static_cast<uint16_t>(bin + 256 * (16 * bin - magnitude + 8));
  }
  static float Signed(int anchor, int magnitude) {
    const auto y = static_cast<float>(Inverse(magnitude));
    return (anchor & 8) != 0 ? -y : y;
  }

  std::array<Bucket, 2 * kBuckets> buckets_;  // of y >= 0, then of y < 0
  std::array<float, 256> values_;
  std::array<float, 16> anchor_values_;
};

// Places in plane 0, and in the code rows of both planes.
struct Layout {
  explicit Layout(const PageShape& shape)
      : head_dim(shape.head_dim), num_chunks((shape.num_tokens + kChunk - 1) / kChunk) {}
  size_t hi() const { return size_t{2} * head_dim; }
  size_t mean(int chunk) const { return size_t{4} * head_dim + size_t{2} * head_dim * chunk; }
  size_t scale(int chunk) const { return mean(chunk) + head_dim; }
  size_t codes() const { return mean(num_chunks); }
  size_t row_bytes() const { return static_cast<size_t>(head_dim) / 2; }
  int head_dim;
  int num_chunks;
};

// The least and the greatest value of each channel, as finite floats.
struct Ranges {
  Ranges() {
    std::fill_n(lo, kMaxHeadDim, std::numeric_limits<float>::infinity());
    std::fill_n(hi, kMaxHeadDim, -std::numeric_limits<float>::infinity());
  }
  // Of equals (+0 and -0) the first is the least and the last is the greatest.
  LYNX_WIDE_LOOPS void Add(const float* least, const float* greatest, int head_dim) {
    for (int c = 0; c < head_dim; ++c) lo[c] = least[c] < lo[c] ? least[c] : lo[c];
    for (int c = 0; c < head_dim; ++c) hi[c] = greatest[c] < hi[c] ? hi[c] : greatest[c];
  }
  float lo[kMaxHeadDim], hi[kMaxHeadDim];
};

// A chunk's numbers of each channel: y = ((x - lo) per_range - mean) scale. In double, because
// hi - lo of BF16 may exceed the largest float.
struct Scaling {
  double Unit(int c, float x) const { return (x - lo[c]) * per_range[c]; }
  double lo[kMaxHeadDim], per_range[kMaxHeadDim], mean[kMaxHeadDim], scale[kMaxHeadDim];
};

void PutBf16(Bf16 value, uint8_t* out) { std::memcpy(out, &value, sizeof(value)); }

Bf16 GetBf16(const std::byte* in) {
  Bf16 value;
  std::memcpy(&value, in, sizeof(value));
  return value;
}

LYNX_WIDE_LOOPS void MulAdd(int size, const float* y, const double* a, const double* b, Bf16* x) {
  for (int i = 0; i < size; ++i) x[i] = FiniteBf16(static_cast<float>(y[i] * a[i] + b[i]));
}

LYNX_WIDE_LOOPS void ReadFloats(const PageShape& shape, const PageTiles& tiles, int t, float* x) {
  Bf16 row[kMaxHeadDim];
  ReadToken(shape, tiles, t, row);
  for (int c = 0; c < shape.head_dim; ++c) x[c] = ToFloat(Finite(row[c]));
}

class PaperCodec final : public Codec {
 public:
  std::string_view name() const override { return "paper"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int plane) const override {
    const Layout layout(shape);
    return (plane == 0 ? layout.codes() : 0) + shape.num_tokens * layout.row_bytes();
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override;

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override;

 private:
  LYNX_WIDE_LOOPS void EncodeChunk(const PageShape& shape, const float* x, int chunk,
                                   const Ranges& range, Scaling& scaling,
                                   uint8_t* const out[2]) const;
  LYNX_WIDE_LOOPS void EncodeToken(const Layout& layout, const Scaling& scaling, const float* x,
                                   uint8_t* anchors, uint8_t* residuals) const;
  // The values of one token's codes; residuals are null when only the anchors are there.
  void DecodeCodes(const Layout& layout, const std::byte* anchors, const std::byte* residuals,
                   float* y) const;

  static constexpr PlaneSpec kPlanes[] = {{"anchor4", 4}, {"residual4", 4}};
  Companding companding_;
};

void PaperCodec::Encode(const PageShape& shape, const PageTiles& tiles,
                        std::span<std::vector<std::byte>> planes) const {
  LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
  const Layout layout(shape);
  uint8_t* out[2];
  for (int p = 0; p < 2; ++p) {
    const size_t begin = planes[p].size();
    planes[p].resize(begin + MaxPlaneBytes(shape, p));
    out[p] = reinterpret_cast<uint8_t*>(planes[p].data()) + begin;
  }
  Ranges page, chunks[kMaxChunks];
  float x[kPageTokens * kMaxHeadDim];  // [num_tokens][head_dim]
  for (int t = 0; t < shape.num_tokens; ++t) {
    float* token = x + static_cast<size_t>(t) * shape.head_dim;
    ReadFloats(shape, tiles, t, token);
    chunks[t / kChunk].Add(token, token, shape.head_dim);
  }
  for (int i = 0; i < layout.num_chunks; ++i) {
    page.Add(chunks[i].lo, chunks[i].hi, shape.head_dim);
  }
  Scaling scaling;
  for (int c = 0; c < shape.head_dim; ++c) {
    PutBf16(ToBf16(page.lo[c]), out[0] + c * sizeof(Bf16));
    PutBf16(ToBf16(page.hi[c]), out[0] + layout.hi() + c * sizeof(Bf16));
    const double range = double{page.hi[c]} - page.lo[c];
    scaling.lo[c] = page.lo[c];
    scaling.per_range[c] = range > 0 ? 1 / range : 0.0;
  }
  for (int i = 0; i < layout.num_chunks; ++i) {
    EncodeChunk(shape, x, i, chunks[i], scaling, out);
  }
}

LYNX_WIDE_LOOPS void PaperCodec::EncodeChunk(const PageShape& shape, const float* x, int chunk,
                                             const Ranges& range, Scaling& scaling,
                                             uint8_t* const out[2]) const {
  const Layout layout(shape);
  const int begin = chunk * kChunk, end = std::min(begin + kChunk, shape.num_tokens);
  double sum[kMaxHeadDim] = {};
  for (int t = begin; t < end; ++t) {
    const float* token = x + static_cast<size_t>(t) * shape.head_dim;
    for (int c = 0; c < shape.head_dim; ++c) sum[c] += scaling.Unit(c, token[c]);
  }
  for (int c = 0; c < shape.head_dim; ++c) {
    const int mean = static_cast<int>(sum[c] / (end - begin) * 255 + 0.5);
    scaling.mean[c] = mean / 255.0;
    // Units grow with x, so the farthest from the mean is that of the least or the greatest.
    const double largest = 255 * std::max(std::abs(scaling.Unit(c, range.lo[c]) - scaling.mean[c]),
                                          std::abs(scaling.Unit(c, range.hi[c]) - scaling.mean[c]));
    const int below = static_cast<int>(largest);
    const int scale = std::clamp(below + (below < largest), 1, 255);
    scaling.scale[c] = 255.0 / scale;
    out[0][layout.mean(chunk) + c] = static_cast<uint8_t>(mean);
    out[0][layout.scale(chunk) + c] = static_cast<uint8_t>(scale);
  }
  for (int t = begin; t < end; ++t) {
    EncodeToken(layout, scaling, x + static_cast<size_t>(t) * shape.head_dim,
                out[0] + layout.codes() + t * layout.row_bytes(), out[1] + t * layout.row_bytes());
  }
}

LYNX_WIDE_LOOPS void PaperCodec::EncodeToken(const Layout& layout, const Scaling& scaling,
                                             const float* x, uint8_t* anchors,
                                             uint8_t* residuals) const {
  float y[kMaxHeadDim];
  int buckets[kMaxHeadDim];
  for (int c = 0; c < layout.head_dim; ++c) {
    const double scaled = (scaling.Unit(c, x[c]) - scaling.mean[c]) * scaling.scale[c];
    y[c] = std::clamp(static_cast<float>(scaled), -1.0f, 1.0f);
  }
  for (int c = 0; c < layout.head_dim; ++c) {
    buckets[c] = Companding::BucketOf(y[c]);
    y[c] = std::abs(y[c]);
  }
  const int num_pairs = layout.head_dim / 2;
  for (int k = 0; k < num_pairs; ++k) {
    const int even = companding_.Code(y[2 * k], buckets[2 * k]);
    const int pair = even | companding_.Code(y[2 * k + 1], buckets[2 * k + 1]) << 4;
    anchors[k] = static_cast<uint8_t>(pair);
    residuals[k] = static_cast<uint8_t>(pair >> 8);
  }
}

void PaperCodec::DecodeCodes(const Layout& layout, const std::byte* anchors,
                             const std::byte* residuals, float* y) const {
  const float* values = residuals == nullptr ? companding_.anchor_values() : companding_.values();
  for (int c = 0; c < layout.head_dim; c += 2) {
    const int anchor = std::to_integer<int>(anchors[c / 2]);
    const int residual = residuals == nullptr ? 0 : std::to_integer<int>(residuals[c / 2]);
    y[c] = values[(anchor & 15) | (residual & 15) << 4];
    y[c + 1] = values[anchor >> 4 | (residual & 0xf0)];
  }
}

absl::Status PaperCodec::Decode(const PageShape& shape,
                                std::span<const std::span<const std::byte>> planes,
                                const MutablePageTiles& tiles) const {
  LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
  for (size_t p = 0; p < planes.size(); ++p) {
    const size_t want = MaxPlaneBytes(shape, static_cast<int>(p));
    if (planes[p].size() == want) continue;
    ClearPage(shape, tiles);
    return WrongPlaneSize(name(), static_cast<int>(p), planes[p].size(), want);
  }
  const Layout layout(shape);
  const std::byte* in = planes[0].data();
  const std::byte* residuals = planes.size() > 1 ? planes[1].data() : nullptr;
  double lo[kMaxHeadDim], range[kMaxHeadDim];
  for (int c = 0; c < shape.head_dim; ++c) {
    lo[c] = ToFloat(GetBf16(in + c * sizeof(Bf16)));
    range[c] = ToFloat(GetBf16(in + layout.hi() + c * sizeof(Bf16))) - lo[c];
    if (std::isfinite(range[c]) && range[c] >= 0) continue;
    ClearPage(shape, tiles);
    return absl::DataLossError(
        absl::StrCat("codec paper: channel ", c, " has no finite minimum below its maximum"));
  }
  for (int i = 0; i < layout.num_chunks; ++i) {
    // x = y a + b in double, because hi - lo may exceed the largest float.
    double a[kMaxHeadDim], b[kMaxHeadDim];
    for (int c = 0; c < shape.head_dim; ++c) {
      a[c] = std::to_integer<int>(in[layout.scale(i) + c]) / 255.0 * range[c];
      b[c] = std::to_integer<int>(in[layout.mean(i) + c]) / 255.0 * range[c] + lo[c];
    }
    const int end = std::min((i + 1) * kChunk, shape.num_tokens);
    for (int t = i * kChunk; t < end; ++t) {
      float y[kMaxHeadDim];
      Bf16 x[kMaxHeadDim];
      DecodeCodes(layout, in + layout.codes() + t * layout.row_bytes(),
                  residuals == nullptr ? nullptr : residuals + t * layout.row_bytes(), y);
      MulAdd(shape.head_dim, y, a, b, x);
      WriteToken(shape, tiles, t, x);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Codec> MakePaperCodec() { return std::make_unique<PaperCodec>(); }

}  // namespace lynx
