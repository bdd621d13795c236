// SPDX-License-Identifier: Apache-2.0
// One plane: u16 [num_tokens][head_dim], little-endian.
#include <cstring>

#include "codec/codecs.h"
#include "codec/tile_access.h"

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
    const size_t begin = planes[0].size();
    planes[0].resize(begin + MaxPlaneBytes(shape, 0));
    std::byte* out = planes[0].data() + begin;
    for (int t = 0; t < shape.num_tokens; ++t) {
      for (int c = 0; c < shape.head_dim; ++c, out += sizeof(Bf16)) {
        std::memcpy(out, &At(shape, tiles, c, t), sizeof(Bf16));
      }
    }
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    const size_t want = MaxPlaneBytes(shape, 0);
    if (planes[0].size() != want) {
      ClearPage(shape, tiles);
      return WrongPlaneSize(name(), 0, planes[0].size(), want);
    }
    const std::byte* in = planes[0].data();
    for (int t = 0; t < shape.num_tokens; ++t) {
      for (int c = 0; c < shape.head_dim; ++c, in += sizeof(Bf16)) {
        std::memcpy(&At(shape, tiles, c, t), in, sizeof(Bf16));
      }
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"bf16", 16}};
};

}  // namespace

std::unique_ptr<Codec> MakeBf16Codec() { return std::make_unique<Bf16Codec>(); }

}  // namespace lynx
