// SPDX-License-Identifier: Apache-2.0
// "int8" and "int4": symmetric codes with one BF16 scale per token and group of channels.
//
// One plane. Per token: u16 scale [num_groups] (BF16 patterns), then the codes of its channels:
// int8 two's complement, or int4 as code + 8, even channel in the low nibble. scale =
// absmax / (2^(bits-1) - 1), code = x / scale rounded to nearest even, value = code * scale. NaN
// counts as 0, Inf as the largest finite value; so are products that overflow.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"

namespace lynx {
namespace {

constexpr int kWholeHead = INT16_MAX;  // one group, whatever the head_dim
constexpr int kInt4Group = 64;

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
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    for (int t = 0; t < shape.num_tokens; ++t, out += TokenBytes(shape)) {
      for (int g = 0; g < NumGroups(shape); ++g) EncodeGroup(shape, tiles, t, g, out);
    }
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    const size_t want = MaxPlaneBytes(shape, 0);
    bool ok = planes[0].size() == want;
    if (!ok) {
      ClearPage(shape, tiles);
      return WrongPlaneSize(name_, 0, planes[0].size(), want);
    }
    const std::byte* in = planes[0].data();
    for (int t = 0; t < shape.num_tokens && ok; ++t, in += TokenBytes(shape)) {
      for (int g = 0; g < NumGroups(shape); ++g) ok = DecodeGroup(shape, tiles, t, g, in) && ok;
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
  int max_code() const { return (1 << (bits_ - 1)) - 1; }

  void EncodeGroup(const PageShape& shape, const PageTiles& tiles, int t, int g,
                   std::byte* token) const {
    const int begin = g * group_, end = std::min(begin + group_, shape.head_dim);
    float absmax = 0;
    for (int c = begin; c < end; ++c) {
      absmax = std::max(absmax, std::abs(FiniteFloat(At(shape, tiles, c, t))));
    }
    const Bf16 scale = ToBf16(absmax / static_cast<float>(max_code()));
    std::memcpy(token + g * sizeof(scale), &scale, sizeof(scale));
    const float step = ToFloat(scale);
    auto* codes = reinterpret_cast<uint8_t*>(token + NumGroups(shape) * sizeof(scale));
    for (int c = begin; c < end; ++c) {
      const float x = FiniteFloat(At(shape, tiles, c, t));
      const auto limit = static_cast<float>(max_code());
      const float code = step > 0 ? std::clamp(std::nearbyint(x / step), -limit, limit) : 0.0f;
      PutCode(codes, c, static_cast<int>(code));
    }
  }

  bool DecodeGroup(const PageShape& shape, const MutablePageTiles& tiles, int t, int g,
                   const std::byte* token) const {
    const int begin = g * group_, end = std::min(begin + group_, shape.head_dim);
    Bf16 scale;
    std::memcpy(&scale, token + g * sizeof(scale), sizeof(scale));
    const auto* codes = reinterpret_cast<const uint8_t*>(token + NumGroups(shape) * sizeof(scale));
    for (int c = begin; c < end; ++c) {
      At(shape, tiles, c, t) = FiniteBf16(static_cast<float>(GetCode(codes, c)) * ToFloat(scale));
    }
    return scale.bits < kBf16Infinity;
  }

  void PutCode(uint8_t* codes, int c, int code) const {
    if (bits_ == 8) {
      codes[c] = static_cast<uint8_t>(code);
    } else if (c % 2 == 0) {
      codes[c / 2] = static_cast<uint8_t>(code + 8);
    } else {
      codes[c / 2] |= static_cast<uint8_t>((code + 8) << 4);
    }
  }
  int GetCode(const uint8_t* codes, int c) const {
    if (bits_ == 8) return static_cast<int8_t>(codes[c]);
    return ((codes[c / 2] >> (c % 2 * 4)) & 15) - 8;
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
