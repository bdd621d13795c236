// SPDX-License-Identifier: Apache-2.0
// The plane format (docs/plane_format.md) as a Codec; the work is the back-end's.
#include "codec/codecs.h"
#include "lynx/backend.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

class PlanesCodec final : public Codec {
 public:
  explicit PlanesCodec(const Backend& backend) : backend_(backend) {}

  std::string_view name() const override { return "planes"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return true; }

  size_t MaxPlaneBytes(const PageShape& shape, int plane) const override {
    LYNX_CHECK(IsPlaneShape(shape));
    return PlaneLayout(shape).max_plane_bytes(plane);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(IsPlaneShape(shape));
    const PlaneLayout layout(shape);
    std::array<size_t, kNumPlanes> offset = {}, bytes = {};
    size_t room = 0;
    for (int p = 0; p < kNumPlanes; ++p) {
      offset[p] = room;
      room += layout.max_plane_bytes(p) + kPlaneSlack;
    }
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(room);
    PlaneEncodeParams params{.shape = shape, .tiles = tiles, .plane_bytes = &bytes};
    for (int p = 0; p < kNumPlanes; ++p) params.planes[p] = buffer.get() + offset[p];
    backend_.PlaneEncode({&params, 1});
    for (int p = 0; p < kNumPlanes; ++p) {
      planes[p].insert(planes[p].end(), params.planes[p], params.planes[p] + bytes[p]);
    }
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    LYNX_CHECK(IsPlaneShape(shape) && !planes.empty() && planes.size() <= kNumPlanes);
    bool ok = false;
    PlaneDecodeParams params{
        .shape = shape, .num_planes = static_cast<int>(planes.size()), .tiles = tiles, .ok = &ok};
    for (size_t p = 0; p < planes.size(); ++p) {
      params.planes[p] = planes[p].data();
      params.plane_bytes[p] = planes[p].size();
    }
    backend_.PlaneDecode({&params, 1});
    if (ok) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("codec planes: these ", planes.size(),
                                            " planes are not a page of ", shape.num_tokens,
                                            " tokens by ", shape.head_dim, " channels"));
  }

 private:
  static constexpr PlaneSpec kPlanes[kNumPlanes] = {
      {"anchor2", 2}, {"bit3", 1}, {"bit4", 1}, {"residual4", 4}, {"exact", 0}};

  const Backend& backend_;
};

}  // namespace

std::unique_ptr<Codec> MakePlanesCodec(const Backend& backend) {
  return std::make_unique<PlanesCodec>(backend);
}

}  // namespace lynx
