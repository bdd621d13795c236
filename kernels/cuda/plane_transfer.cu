// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/cuda/plane_decode.h"
#include "kernels/cuda/plane_encode.h"
#include "kernels/cuda/plane_gather.h"
#include "kernels/cuda/plane_store.h"
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
  offset_.moves = offsets.Add<PlaneMove>(kMaxPlaneBatch * kNumPlanes);
  offset_.planes = offsets.Add<std::byte>(kMaxPlaneBatch * page_room_);
  device_ = AllocateDevice(offsets.bytes());
  pinned_ = AllocatePinned(offsets.bytes());
}

std::unique_ptr<PlaneEncoder> PlaneEncoder::Create(int head_dim) {
  std::unique_ptr<PlaneEncoder> encoder(new PlaneEncoder(head_dim));
  if (encoder->device_ == nullptr || encoder->pinned_ == nullptr) return nullptr;
  // Whole vectors are gathered: a plane's last one holds bytes that nobody encodes.
  AbortOnError(cudaMemsetAsync(encoder->Room(0, 0), 0, kMaxPlaneBatch * encoder->page_room_,
                               encoder->stream_.get()),
               "cudaMemsetAsync");
  encoder->Wait();
  return encoder;
}

void PlaneEncoder::Wait() const {
  done_.Record(stream_);
  done_.Synchronize();
}

// Queued; the bytes used come to pinned memory as well.
void PlaneEncoder::EncodeIntoRooms(std::span<const PlaneEncodeParams> pages, cudaEvent_t written,
                                   bool all_planes) {
  const int num_pages = static_cast<int>(pages.size());
  auto* host_pages = ArrayAt<PlaneEncodePage>(pinned_.get(), offset_.pages);
  auto* device_bytes = ArrayAt<uint32_t>(device_.get(), offset_.plane_bytes);
  for (int i = 0; i < num_pages; ++i) {
    PlaneEncodePage page{.shape = pages[i].shape};
    std::copy(pages[i].tiles.begin(), pages[i].tiles.end(), page.tiles);
    for (int p = 0; p < kNumPlanes; ++p) {
      if (all_planes || pages[i].planes[p] != nullptr) page.planes[p] = Room(i, p);
    }
    host_pages[i] = page;
  }
  stream_.WaitFor(written);
  stream_.Copy(device_.get() + offset_.pages, host_pages, num_pages * sizeof(PlaneEncodePage),
               cudaMemcpyHostToDevice);
  PlaneEncode(stream_.get(), ArrayAt<PlaneEncodePage>(device_.get(), offset_.pages), num_pages,
              device_bytes);
  stream_.Copy(pinned_.get() + offset_.plane_bytes, device_bytes,
               num_pages * kNumPlanes * sizeof(uint32_t), cudaMemcpyDeviceToHost);
}

void PlaneEncoder::Encode(std::span<const PlaneEncodeParams> pages, cudaEvent_t written) {
  std::lock_guard lock(mutex_);
  const int num_pages = static_cast<int>(pages.size());
  EncodeIntoRooms(pages, written, /*all_planes=*/false);
  GatherPlanes(stream_.get(), {.from = Room(0, 0),
                               .page_stride = page_room_,
                               .offset = plane_offset_,
                               .plane_bytes = ArrayAt<uint32_t>(device_.get(), offset_.plane_bytes),
                               .num_pages = num_pages,
                               .to = pinned_.get() + offset_.planes});
  Wait();
  const auto* host_bytes = ArrayAt<uint32_t>(pinned_.get(), offset_.plane_bytes);
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

bool PlaneEncoder::Store(std::span<PlaneEncodeParams> pages, cudaEvent_t written,
                         std::span<const DeviceChunks::Table> tables,
                         const std::function<bool()>& place) {
  std::lock_guard lock(mutex_);
  EncodeIntoRooms(pages, written, /*all_planes=*/true);
  Wait();
  const auto* host_bytes = ArrayAt<uint32_t>(pinned_.get(), offset_.plane_bytes);
  for (size_t i = 0; i < pages.size(); ++i) {
    std::copy_n(host_bytes + i * kNumPlanes, kNumPlanes, pages[i].plane_bytes->begin());
  }
  if (!place()) return false;
  auto* moves = ArrayAt<PlaneMove>(pinned_.get(), offset_.moves);
  int num_moves = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    for (int p = 0; p < kNumPlanes; ++p) {
      if (pages[i].planes[p] == nullptr) continue;
      moves[num_moves++] = {
          .from = Room(i, p), .to = pages[i].planes[p], .bytes = host_bytes[i * kNumPlanes + p]};
    }
  }
  auto* device_moves = ArrayAt<PlaneMove>(device_.get(), offset_.moves);
  stream_.Copy(device_moves, moves, num_moves * sizeof(PlaneMove), cudaMemcpyHostToDevice);
  StorePlanes(stream_.get(), device_moves, num_moves);
  for (const DeviceChunks::Table& table : tables) {
    stream_.Copy(table.to, table.bytes.data(), table.bytes.size(), cudaMemcpyHostToDevice);
  }
  Wait();
  return true;
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

// What of plane p is uploaded.
size_t UploadBytes(const PlaneDecodeParams& params, const PlaneDecodePage& page, int p) {
  return params.on_device[p] ? 0 : GatheredBytes(page.plane_bytes[p]);
}

PlaneDecodePage DescribePage(const PlaneDecodeParams& params, const std::byte* device, bool fits) {
  PlaneDecodePage page{.shape = params.shape, .num_planes = fits ? params.num_planes : 1};
  for (int p = 0; p < page.num_planes; ++p) {
    page.plane_bytes[p] = fits ? static_cast<uint32_t>(params.plane_bytes[p]) : 0;
    page.planes[p] = params.on_device[p] ? params.planes[p] : device;
    device += UploadBytes(params, page, p);
  }
  std::copy(params.tiles.begin(), params.tiles.end(), page.tiles);
  return page;
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
    for (int p = 0; p < host_pages[i].num_planes; ++p) {
      end += UploadBytes(pages[i], host_pages[i], p);
    }
  }
  copy_stream_.Copy(device_pages, host_pages, num_pages * sizeof(PlaneDecodePage),
                    cudaMemcpyHostToDevice);
  size_t begin = offset_.planes;
  for (int first = 0; first < num_pages; first += kPagesPerUpload) {
    const int count = std::min(kPagesPerUpload, num_pages - first);
    size_t at = begin;
    for (int i = first; i < first + count; ++i) {
      for (int p = 0; p < host_pages[i].num_planes; ++p) {
        const size_t bytes = UploadBytes(pages[i], host_pages[i], p);
        if (bytes > 0) {
          std::memcpy(pinned_.get() + at, pages[i].planes[p], host_pages[i].plane_bytes[p]);
        }
        at += bytes;
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
