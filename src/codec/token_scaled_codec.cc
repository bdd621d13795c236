// SPDX-License-Identifier: Apache-2.0
// "int8" and "int4": symmetric codes with one BF16 scale per token and group of channels.
//
// One plane. Per token: u16 scale [num_groups] (BF16 patterns), then the codes of its channels:
// int8 two's complement, or int4 as code + 8, even channel in the low nibble. scale =
// absmax / (2^(bits-1) - 1), code = x / scale rounded to nearest even, value = code * scale. NaN
// counts as 0, Inf as the largest finite value; so are products that overflow.
#include <algorithm>
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr int kWholeHead = INT16_MAX;  // one group, whatever the head_dim
constexpr int kInt4Group = 64;
constexpr int kNibbleBias = 8;

class TokenScaledCodec final : public Codec {
 public:
  TokenScaledCodec(std::string_view name, int bits, int group)
      : name_(name), bits_(bits), group_(group), spec_{{name, bits}} {}

  std::string_view name() const override { return name_; }
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
      return WrongPlaneSize(name_, 0, planes[0].size(), want);
    }
    const std::byte* in = planes[0].data();
    for (int t = 0; t < shape.num_tokens && ok; ++t, in += TokenBytes(shape)) {
      ok = DecodeToken(shape, tiles, t, in);
    }
    if (ok) return absl::OkStatus();
    ClearPage(shape, tiles);
    return absl::DataLossError(absl::StrCat("codec ", std::string(name_), ": a scale is not a ",
                                            "finite number above or equal to 0"));
  }

 private:
  int NumGroups(const PageShape& shape) const { return (shape.head_dim + group_ - 1) / group_; }
  size_t TokenBytes(const PageShape& shape) const {
    return NumGroups(shape) * sizeof(uint16_t) + static_cast<size_t>(shape.head_dim) * bits_ / 8;
  }
  LYNX_WIDE_LOOPS void EncodeToken(const PageShape& shape, const PageTiles& tiles, int t,
                                   std::byte* out) const {
    Bf16 x[kMaxHeadDim];
    int8_t code[kMaxHeadDim];
    ReadToken(shape, tiles, t, x);
    for (int begin = 0; begin < shape.head_dim; begin += group_) {
      const int size = std::min(group_, shape.head_dim - begin);
      const Bf16 scale = EncodeGroup(x + begin, size, code + begin);
      std::memcpy(out, &scale, sizeof(scale));
      out += sizeof(scale);
    }
    if (bits_ == 8) {
      std::memcpy(out, code, shape.head_dim);
      return;
    }
    for (int c = 0; c < shape.head_dim; c += 2) {
      out[c / 2] = std::byte((code[c] + kNibbleBias) | (code[c + 1] + kNibbleBias) << 4);
    }
  }

  LYNX_WIDE_LOOPS Bf16 EncodeGroup(const Bf16* x, int size, int8_t* code) const {
    int16_t absmax = 0;  // magnitudes are ordered as their bit patterns
    for (int i = 0; i < size; ++i) {
      absmax = std::max(absmax, static_cast<int16_t>(Finite(x[i]).bits & 0x7fff));
    }
    const auto limit = static_cast<float>((1 << (bits_ - 1)) - 1);
    const Bf16 scale = ToBf16(ToFloat(Bf16{static_cast<uint16_t>(absmax)}) / limit);
    const float step = scale.bits == 0 ? 1.0f : ToFloat(scale);
    // Adding and subtracting this rounds small numbers to integers, nearest even.
    constexpr float kRounder = 0x1.8p23f;
    for (int i = 0; i < size; ++i) {
      const float q =
          (std::clamp(ToFloat(Finite(x[i])) / step, -limit, limit) + kRounder) - kRounder;
      code[i] = static_cast<int8_t>(q);
    }
    return scale;
  }

  // False when a scale is negative, infinite or NaN.
  LYNX_WIDE_LOOPS bool DecodeToken(const PageShape& shape, const MutablePageTiles& tiles, int t,
                                   const std::byte* in) const {
    int8_t code[kMaxHeadDim];
    Bf16 x[kMaxHeadDim];
    GetCodes(in + NumGroups(shape) * sizeof(Bf16), shape.head_dim, code);
    for (int begin = 0; begin < shape.head_dim; begin += group_, in += sizeof(Bf16)) {
      Bf16 scale;
      std::memcpy(&scale, in, sizeof(scale));
      if (scale.bits >= kBf16Infinity) return false;
      const float step = ToFloat(scale);  // 8 significant bits, so the products are exact
      const int end = std::min(begin + group_, shape.head_dim);
      for (int c = begin; c < end; ++c) x[c] = FiniteBf16(static_cast<float>(code[c]) * step);
    }
    WriteToken(shape, tiles, t, x);
    return true;
  }

  LYNX_WIDE_LOOPS void GetCodes(const std::byte* in, int head_dim, int8_t* code) const {
    if (bits_ == 8) {
      std::memcpy(code, in, head_dim);
      return;
    }
    for (int c = 0; c < head_dim; c += 2) {
      const auto pair = std::to_integer<uint8_t>(in[c / 2]);
      code[c] = static_cast<int8_t>((pair & 15) - kNibbleBias);
      code[c + 1] = static_cast<int8_t>((pair >> 4) - kNibbleBias);
    }
  }

  std::string_view name_;
  int bits_;
  int group_;  // channels
  PlaneSpec spec_[1];
};

}  // namespace

std::unique_ptr<Codec> MakeInt8Codec() {
  return std::make_unique<TokenScaledCodec>("int8", 8, kWholeHead);
}
std::unique_ptr<Codec> MakeInt4Codec() {
  return std::make_unique<TokenScaledCodec>("int4", 4, kInt4Group);
}

}  // namespace lynx
