// SPDX-License-Identifier: Apache-2.0
// The plane format (docs/plane_format.md) as a Codec; the work is the back-end's.
#include <algorithm>

#include "codec/codecs.h"
#include "codec/scratch_pool.h"
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
  DeviceChunks* device_chunks() const override { return backend_.device_chunks(); }

  size_t MaxPlaneBytes(const PageShape& shape, int plane) const override {
    LYNX_CHECK(IsPlaneShape(shape));
    return PlaneLayout(shape).max_plane_bytes(plane);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    const PageToEncode page{.shape = shape, .tiles = tiles, .planes = planes};
    EncodeBatch({&page, 1});
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    const PageToDecode page{.shape = shape, .planes = planes, .tiles = tiles};
    size_t bad_page = 0;
    return DecodeBatch({&page, 1}, &bad_page);
  }

  void EncodePages(std::span<const PageToEncode> pages) const override {
    for (; !pages.empty(); pages = pages.subspan(BatchSize(pages.size()))) {
      EncodeBatch(pages.first(BatchSize(pages.size())));
    }
  }

  absl::Status DecodePages(std::span<const PageToDecode> pages, size_t* bad_page) const override {
    for (size_t begin = 0; begin < pages.size();) {
      const auto batch = pages.subspan(begin, BatchSize(pages.size() - begin));
      const absl::Status status = DecodeBatch(batch, bad_page);
      if (!status.ok()) *bad_page += begin;
      LYNX_RETURN_IF_ERROR(status);
      begin += batch.size();
    }
    return absl::OkStatus();
  }

 private:
  static constexpr PlaneSpec kPlanes[kNumPlanes] = {
      {"anchor2", 2}, {"bit3", 1}, {"bit4", 1}, {"residual4", 4}, {"exact", 0}};

  size_t BatchSize(size_t num_pages) const {
    return std::min(num_pages, static_cast<size_t>(backend_.max_plane_batch()));
  }
  void EncodeBatch(std::span<const PageToEncode> pages) const;
  absl::Status DecodeBatch(std::span<const PageToDecode> pages, size_t* bad_page) const;

  const Backend& backend_;
  mutable ScratchPool<std::vector<std::byte>> buffers_;
};

void PlanesCodec::EncodeBatch(std::span<const PageToEncode> pages) const {
  std::vector<PlaneEncodeParams> params(pages.size());
  std::vector<std::array<size_t, kNumPlanes>> offsets(pages.size()), bytes(pages.size());
  size_t room = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    LYNX_CHECK(IsPlaneShape(pages[i].shape));
    const PlaneLayout layout(pages[i].shape);
    for (int p = 0; p < kNumPlanes; ++p) {
      offsets[i][p] = room;
      room += layout.max_plane_bytes(p) + kPlaneSlack;
    }
  }
  const auto loan = buffers_.Borrow();
  std::vector<std::byte>& buffer = *loan;
  if (buffer.size() < room) buffer.resize(room);
  for (size_t i = 0; i < pages.size(); ++i) {
    params[i] = {.shape = pages[i].shape, .tiles = pages[i].tiles, .plane_bytes = &bytes[i]};
    for (int p = 0; p < kNumPlanes; ++p) params[i].planes[p] = buffer.data() + offsets[i][p];
  }
  backend_.PlaneEncode(params);
  for (size_t i = 0; i < pages.size(); ++i) {
    for (int p = 0; p < kNumPlanes; ++p) {
      std::vector<std::byte>& out = pages[i].planes[p];
      out.insert(out.end(), params[i].planes[p], params[i].planes[p] + bytes[i][p]);
    }
  }
}

absl::Status PlanesCodec::DecodeBatch(std::span<const PageToDecode> pages, size_t* bad_page) const {
  std::vector<PlaneDecodeParams> params(pages.size());
  const auto ok = std::make_unique<bool[]>(pages.size());
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& planes = pages[i].planes;
    LYNX_CHECK(IsPlaneShape(pages[i].shape) && !planes.empty() && planes.size() <= kNumPlanes);
    params[i] = {.shape = pages[i].shape,
                 .num_planes = static_cast<int>(planes.size()),
                 .tiles = pages[i].tiles,
                 .ok = &ok[i]};
    for (size_t p = 0; p < planes.size(); ++p) {
      params[i].planes[p] = planes[p].data();
      params[i].plane_bytes[p] = planes[p].size();
      if (!pages[i].on_device.empty()) params[i].on_device[p] = pages[i].on_device[p];
    }
  }
  backend_.PlaneDecode(params);
  for (size_t i = 0; i < pages.size(); ++i) {
    if (ok[i]) continue;
    *bad_page = i;
    return absl::DataLossError(absl::StrCat("codec planes: these ", params[i].num_planes,
                                            " planes are not a page of ", pages[i].shape.num_tokens,
                                            " tokens by ", pages[i].shape.head_dim, " channels"));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Codec> MakePlanesCodec(const Backend& backend) {
  return std::make_unique<PlanesCodec>(backend);
}

}  // namespace lynx
