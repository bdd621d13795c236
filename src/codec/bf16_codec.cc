// SPDX-License-Identifier: Apache-2.0
// One plane: u16 [num_tokens][head_dim], little-endian.
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

class Bf16Codec final : public Codec {
 public:
  std::string_view name() const override { return "bf16"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return true; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    return static_cast<size_t>(shape.num_tokens) * shape.head_dim * sizeof(Bf16);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    Bf16 row[kMaxHeadDim];
    const size_t row_bytes = shape.head_dim * sizeof(Bf16);
    for (int t = 0; t < shape.num_tokens; ++t, out += row_bytes) {
      ReadToken(shape, tiles, t, row);
      std::memcpy(out, row, row_bytes);
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
    Bf16 row[kMaxHeadDim];
    const size_t row_bytes = shape.head_dim * sizeof(Bf16);
    for (int t = 0; t < shape.num_tokens; ++t, in += row_bytes) {
      std::memcpy(row, in, row_bytes);
      WriteToken(shape, tiles, t, row);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"bf16", 16}};
};

}  // namespace

std::unique_ptr<Codec> MakeBf16Codec() { return std::make_unique<Bf16Codec>(); }

}  // namespace lynx
