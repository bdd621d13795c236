// SPDX-License-Identifier: Apache-2.0
// "int8", "int4" and "fp8": symmetric codes with one BF16 scale per token and group of channels.
//
// One plane. Per token: u16 scale [num_groups] (BF16 patterns), then the codes of its channels:
// int8 two's complement, int4 as code + 8 with the even channel in the low nibble, or e4m3.
// scale = absmax / limit (127, 7, 448), code = x / scale rounded to nearest even, value = code *
// scale. NaN counts as 0, Inf as the largest finite value; so are products that overflow.
#include <algorithm>
#include <cstring>

#include "codec/codecs.h"
#include "codec/fp8.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr int kWholeHead = INT16_MAX;  // one group, whatever the head_dim
constexpr int kInt4Group = 64;
constexpr int kNibbleBias = 8;

enum class CodeType { kInt8, kInt4, kFp8 };

struct CodeFormat {
  std::string_view name;
  CodeType type;
  int bits;
  int group;    // channels
  float limit;  // the largest code
};

// The codes of y [n], |y| <= limit; and back, false when one is not a number.
LYNX_WIDE_LOOPS void PutCodes(CodeType type, const float* y, int n, std::byte* out) {
  if (type == CodeType::kFp8) {
    for (int c = 0; c < n; ++c) out[c] = std::byte{ToE4m3(y[c])};
  } else if (type == CodeType::kInt8) {
    for (int c = 0; c < n; ++c) out[c] = std::byte(static_cast<int8_t>(RoundToEven(y[c])));
  } else {
    int8_t code[kMaxHeadDim];
    for (int c = 0; c < n; ++c) code[c] = static_cast<int8_t>(RoundToEven(y[c]));
    for (int c = 0; c < n; c += 2) {
      out[c / 2] = std::byte((code[c] + kNibbleBias) | (code[c + 1] + kNibbleBias) << 4);
    }
  }
}

LYNX_WIDE_LOOPS bool GetCodes(CodeType type, const std::byte* in, int n, float* y) {
  if (type == CodeType::kInt8) {
    for (int c = 0; c < n; ++c) y[c] = static_cast<int8_t>(in[c]);
    return true;
  }
  if (type == CodeType::kInt4) {
    for (int c = 0; c < n; c += 2) {
      const auto pair = std::to_integer<uint8_t>(in[c / 2]);
      y[c] = static_cast<float>((pair & 15) - kNibbleBias);
      y[c + 1] = static_cast<float>((pair >> 4) - kNibbleBias);
    }
    return true;
  }
  int num_nan = 0;
  for (int c = 0; c < n; ++c) {
    const auto code = std::to_integer<uint8_t>(in[c]);
    num_nan += (code & 0x7f) == kNanE4m3;
    y[c] = E4m3ToFloat(code);
  }
  return num_nan == 0;
}

class TokenScaledCodec final : public Codec {
 public:
  explicit TokenScaledCodec(const CodeFormat& format)
      : format_(format), spec_{{format.name, format.bits}} {}

  std::string_view name() const override { return format_.name; }
  std::span<const PlaneSpec> planes() const override { return spec_; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    return shape.num_tokens * TokenBytes(shape);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    for (int t = 0; t < shape.num_tokens; ++t, out += TokenBytes(shape)) {
      EncodeToken(shape, tiles, t, out);
    }
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t want = MaxPlaneBytes(shape, 0);
    bool ok = planes[0].size() == want;
    if (!ok) {
      ClearPage(shape, tiles);
      return WrongPlaneSize(name(), 0, planes[0].size(), want);
    }
    const std::byte* in = planes[0].data();
    for (int t = 0; t < shape.num_tokens && ok; ++t, in += TokenBytes(shape)) {
      ok = DecodeToken(shape, tiles, t, in);
    }
    if (ok) return absl::OkStatus();
    ClearPage(shape, tiles);
    return WrongNumber(name(), "a scale is negative or a number is not finite");
  }

 private:
  int NumGroups(const PageShape& shape) const {
    return (shape.head_dim + format_.group - 1) / format_.group;
  }
  size_t TokenBytes(const PageShape& shape) const {
    return NumGroups(shape) * sizeof(uint16_t) +
           static_cast<size_t>(shape.head_dim) * format_.bits / 8;
  }
  LYNX_WIDE_LOOPS void EncodeToken(const PageShape& shape, const PageTiles& tiles, int t,
                                   std::byte* out) const {
    Bf16 x[kMaxHeadDim];
    float y[kMaxHeadDim];
    ReadToken(shape, tiles, t, x);
    for (int begin = 0; begin < shape.head_dim; begin += format_.group) {
      const int size = std::min(format_.group, shape.head_dim - begin);
      const Bf16 scale = ScaleGroup(x + begin, size, y + begin);
      std::memcpy(out, &scale, sizeof(scale));
      out += sizeof(scale);
    }
    PutCodes(format_.type, y, shape.head_dim, out);
  }

  // y = x / scale, at most limit.
  LYNX_WIDE_LOOPS Bf16 ScaleGroup(const Bf16* x, int size, float* y) const {
    int16_t absmax = 0;  // magnitudes are ordered as their bit patterns
    for (int i = 0; i < size; ++i) {
      absmax = std::max(absmax, static_cast<int16_t>(Finite(x[i]).bits & 0x7fff));
    }
    const float limit = format_.limit;
    const Bf16 scale = ToBf16(ToFloat(Bf16{static_cast<uint16_t>(absmax)}) / limit);
    const float step = StepOf(scale);
    for (int i = 0; i < size; ++i) {
      y[i] = std::clamp(ToFloat(Finite(x[i])) / step, -limit, limit);
    }
    return scale;
  }

  // False when a scale is negative, infinite or NaN, or a code is NaN.
  LYNX_WIDE_LOOPS bool DecodeToken(const PageShape& shape, const MutablePageTiles& tiles, int t,
                                   const std::byte* in) const {
    float y[kMaxHeadDim];
    Bf16 x[kMaxHeadDim];
    if (!GetCodes(format_.type, in + NumGroups(shape) * sizeof(Bf16), shape.head_dim, y)) {
      return false;
    }
    for (int begin = 0; begin < shape.head_dim; begin += format_.group, in += sizeof(Bf16)) {
      Bf16 scale;
      std::memcpy(&scale, in, sizeof(scale));
      if (scale.bits >= kBf16Infinity) return false;
      const float step = ToFloat(scale);  // 8 significant bits, so the products are exact
      const int end = std::min(begin + format_.group, shape.head_dim);
      for (int c = begin; c < end; ++c) x[c] = FiniteBf16(y[c] * step);
    }
    WriteToken(shape, tiles, t, x);
    return true;
  }

  CodeFormat format_;
  PlaneSpec spec_[1];
};

}  // namespace

std::unique_ptr<Codec> MakeInt8Codec() {
  return std::make_unique<TokenScaledCodec>(
      CodeFormat{"int8", CodeType::kInt8, 8, kWholeHead, 127});
}
std::unique_ptr<Codec> MakeInt4Codec() {
  return std::make_unique<TokenScaledCodec>(CodeFormat{"int4", CodeType::kInt4, 4, kInt4Group, 7});
}
std::unique_ptr<Codec> MakeFp8Codec() {
  return std::make_unique<TokenScaledCodec>(
      CodeFormat{"fp8", CodeType::kFp8, 8, kWholeHead, kMaxE4m3});
}

}  // namespace lynx
