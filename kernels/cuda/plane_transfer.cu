// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/cuda/plane_decode.h"
#include "kernels/cuda/plane_encode.h"
#include "kernels/cuda/plane_gather.h"
#include "kernels/cuda/plane_transfer.h"

namespace lynx::cuda {
namespace {

// No plane of a page with this head_dim is longer, whatever is protected: protected and raw tokens
// take the same room.
std::array<size_t, kNumPlanes> PlaneRooms(int head_dim) {
  const PlaneLayout layout(PageShape{.head_dim = head_dim, .num_tokens = kPageTokens});
  std::array<size_t, kNumPlanes> rooms;
  for (int p = 0; p < kNumPlanes; ++p) rooms[p] = GatheredBytes(layout.max_plane_bytes(p));
  return rooms;
}

size_t PageRoom(int head_dim) {
  size_t room = 0;
  for (const size_t plane : PlaneRooms(head_dim)) room += plane;
  return room;
}

}  // namespace

// ---- encoding -----------------------------------------------------------------------------------

PlaneEncoder::PlaneEncoder(int head_dim) {
  const std::array<size_t, kNumPlanes> rooms = PlaneRooms(head_dim);
  for (int p = 0; p < kNumPlanes; ++p) {
    plane_offset_[p] = page_room_;
    page_room_ += rooms[p];
  }
  ArrayOffsets offsets;
  offset_.pages = offsets.Add<PlaneEncodePage>(kMaxPlaneBatch);
  offset_.plane_bytes = offsets.Add<uint32_t>(kMaxPlaneBatch * kNumPlanes);
  offset_.planes = offsets.Add<std::byte>(kMaxPlaneBatch * page_room_);
  device_ = AllocateDevice(offsets.bytes());
  pinned_ = AllocatePinned(offsets.bytes());
}

std::unique_ptr<PlaneEncoder> PlaneEncoder::Create(int head_dim) {
  std::unique_ptr<PlaneEncoder> encoder(new PlaneEncoder(head_dim));
  if (encoder->device_ == nullptr || encoder->pinned_ == nullptr) return nullptr;
  // Whole vectors are gathered: a plane's last one holds bytes that nobody encodes.
  AbortOnError(cudaMemset(encoder->device_.get() + encoder->offset_.planes, 0,
                          kMaxPlaneBatch * encoder->page_room_),
               "cudaMemset");
  return encoder;
}

void PlaneEncoder::Encode(std::span<const PlaneEncodeParams> pages, cudaEvent_t written) {
  std::lock_guard lock(mutex_);
  const int num_pages = static_cast<int>(pages.size());
  auto* host_pages = ArrayAt<PlaneEncodePage>(pinned_.get(), offset_.pages);
  auto* device_bytes = ArrayAt<uint32_t>(device_.get(), offset_.plane_bytes);
  auto* host_bytes = ArrayAt<uint32_t>(pinned_.get(), offset_.plane_bytes);
  std::byte* rooms = device_.get() + offset_.planes;
  for (int i = 0; i < num_pages; ++i) {
    PlaneEncodePage page{.shape = pages[i].shape};
    std::copy(pages[i].tiles.begin(), pages[i].tiles.end(), page.tiles);
    for (int p = 0; p < kNumPlanes; ++p) {
      if (pages[i].planes[p] == nullptr) continue;
      page.planes[p] = rooms + i * page_room_ + plane_offset_[p];
    }
    host_pages[i] = page;
  }
  stream_.WaitFor(written);
  stream_.Copy(device_.get() + offset_.pages, host_pages, num_pages * sizeof(PlaneEncodePage),
               cudaMemcpyHostToDevice);
  PlaneEncode(stream_.get(), ArrayAt<PlaneEncodePage>(device_.get(), offset_.pages), num_pages,
              device_bytes);
  stream_.Copy(host_bytes, device_bytes, num_pages * kNumPlanes * sizeof(uint32_t),
               cudaMemcpyDeviceToHost);
  GatherPlanes(stream_.get(), {.from = rooms,
                               .page_stride = page_room_,
                               .offset = plane_offset_,
                               .plane_bytes = device_bytes,
                               .num_pages = num_pages,
                               .to = pinned_.get() + offset_.planes});
  done_.Record(stream_);
  done_.Synchronize();
  const std::byte* from = pinned_.get() + offset_.planes;
  for (int i = 0; i < num_pages; ++i) {
    for (int p = 0; p < kNumPlanes; ++p) {
      const size_t bytes = host_bytes[i * kNumPlanes + p];
      (*pages[i].plane_bytes)[p] = bytes;
      if (bytes > 0) std::memcpy(pages[i].planes[p], from, bytes);
      from += GatheredBytes(bytes);
    }
  }
}

// ---- decoding -----------------------------------------------------------------------------------

PlaneDecoder::PlaneDecoder(int head_dim) {
  ArrayOffsets offsets;
  offset_.pages = offsets.Add<PlaneDecodePage>(kMaxPlaneBatch);
  offset_.ok = offsets.Add<uint8_t>(kMaxPlaneBatch);
  offset_.planes = offsets.Add<std::byte>(kMaxPlaneBatch * PageRoom(head_dim));
  device_ = AllocateDevice(offsets.bytes());
  pinned_ = AllocatePinned(offsets.bytes());
}

std::unique_ptr<PlaneDecoder> PlaneDecoder::Create(int head_dim) {
  std::unique_ptr<PlaneDecoder> decoder(new PlaneDecoder(head_dim));
  if (decoder->device_ == nullptr || decoder->pinned_ == nullptr) return nullptr;
  return decoder;
}

namespace {

// A plane that is longer than any could be is not uploaded; without its first plane the page is
// refused as a whole.
bool FitsRooms(const PlaneDecodeParams& page) {
  const PlaneLayout layout(page.shape);
  for (int p = 0; p < page.num_planes; ++p) {
    if (page.plane_bytes[p] > layout.max_plane_bytes(p)) return false;
  }
  return true;
}

PlaneDecodePage DescribePage(const PlaneDecodeParams& params, const std::byte* device, bool fits) {
  PlaneDecodePage page{.shape = params.shape, .num_planes = fits ? params.num_planes : 1};
  for (int p = 0; p < page.num_planes; ++p) {
    page.planes[p] = device;
    page.plane_bytes[p] = fits ? static_cast<uint32_t>(params.plane_bytes[p]) : 0;
    device += GatheredBytes(page.plane_bytes[p]);
  }
  std::copy(params.tiles.begin(), params.tiles.end(), page.tiles);
  return page;
}

size_t UploadBytes(const PlaneDecodePage& page) {
  size_t bytes = 0;
  for (int p = 0; p < page.num_planes; ++p) bytes += GatheredBytes(page.plane_bytes[p]);
  return bytes;
}

}  // namespace

void PlaneDecoder::Decode(std::span<const PlaneDecodeParams> pages) {
  std::lock_guard lock(mutex_);
  const int num_pages = static_cast<int>(pages.size());
  auto* host_pages = ArrayAt<PlaneDecodePage>(pinned_.get(), offset_.pages);
  auto* device_pages = ArrayAt<PlaneDecodePage>(device_.get(), offset_.pages);
  auto* device_ok = ArrayAt<uint8_t>(device_.get(), offset_.ok);
  size_t end = offset_.planes;
  for (int i = 0; i < num_pages; ++i) {
    host_pages[i] = DescribePage(pages[i], device_.get() + end, FitsRooms(pages[i]));
    end += UploadBytes(host_pages[i]);
  }
  copy_stream_.Copy(device_pages, host_pages, num_pages * sizeof(PlaneDecodePage),
                    cudaMemcpyHostToDevice);
  size_t begin = offset_.planes;
  for (int first = 0; first < num_pages; first += kPagesPerUpload) {
    const int count = std::min(kPagesPerUpload, num_pages - first);
    size_t at = begin;
    for (int i = first; i < first + count; ++i) {
      for (int p = 0; p < host_pages[i].num_planes; ++p) {
        const size_t bytes = host_pages[i].plane_bytes[p];
        if (bytes > 0) std::memcpy(pinned_.get() + at, pages[i].planes[p], bytes);
        at += GatheredBytes(bytes);
      }
    }
    copy_stream_.Copy(device_.get() + begin, pinned_.get() + begin, at - begin,
                      cudaMemcpyHostToDevice);
    const Event& uploaded = uploaded_[first / kPagesPerUpload];
    uploaded.Record(copy_stream_);
    stream_.WaitFor(uploaded.get());
    PlaneDecode(stream_.get(), device_pages + first, count, device_ok + first);
    begin = at;
  }
  auto* host_ok = ArrayAt<uint8_t>(pinned_.get(), offset_.ok);
  stream_.Copy(host_ok, device_ok, num_pages, cudaMemcpyDeviceToHost);
  done_.Record(stream_);
  done_.Synchronize();
  for (int i = 0; i < num_pages; ++i) *pages[i].ok = host_ok[i] != 0;
}

// ---- tiles --------------------------------------------------------------------------------------

std::unique_ptr<TileCopier> TileCopier::Create() {
  std::unique_ptr<TileCopier> copier(new TileCopier);
  if (copier->pinned_ == nullptr) return nullptr;
  return copier;
}

void TileCopier::Read(std::span<const std::byte* const> tiles, size_t tile_bytes,
                      cudaEvent_t written, std::byte* to) {
  std::lock_guard lock(mutex_);
  stream_.WaitFor(written);
  const size_t per_round = kPinnedBytes / tile_bytes;
  for (; !tiles.empty(); tiles = tiles.subspan(std::min(per_round, tiles.size()))) {
    const size_t count = std::min(per_round, tiles.size());
    for (size_t i = 0; i < count; ++i) {
      stream_.Copy(pinned_.get() + i * tile_bytes, tiles[i], tile_bytes, cudaMemcpyDeviceToHost);
    }
    done_.Record(stream_);
    done_.Synchronize();
    std::memcpy(to, pinned_.get(), count * tile_bytes);
    to += count * tile_bytes;
  }
}

void TileCopier::Write(std::span<std::byte* const> tiles, size_t tile_bytes,
                       const std::byte* from) {
  std::lock_guard lock(mutex_);
  const size_t per_round = kPinnedBytes / tile_bytes;
  for (; !tiles.empty(); tiles = tiles.subspan(std::min(per_round, tiles.size()))) {
    const size_t count = std::min(per_round, tiles.size());
    std::memcpy(pinned_.get(), from, count * tile_bytes);
    from += count * tile_bytes;
    for (size_t i = 0; i < count; ++i) {
      stream_.Copy(tiles[i], pinned_.get() + i * tile_bytes, tile_bytes, cudaMemcpyHostToDevice);
    }
    done_.Record(stream_);
    done_.Synchronize();
  }
}

}  // namespace lynx::cuda
