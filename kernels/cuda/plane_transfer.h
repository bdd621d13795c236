// SPDX-License-Identifier: Apache-2.0
// Pages of a pool in device memory to plane bytes and back: in host memory, through pinned memory,
// or in chunks in device memory (lynx/device_chunks.h).
//
// Each class serves one caller at a time on streams of its own, beside the forward pass, and takes
// its memory when it is created.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/stream.h"
#include "lynx/device_chunks.h"
#include "lynx/plane_format.h"

namespace lynx::cuda {

// Both kinds of 16 KV heads.
inline constexpr int kMaxPlaneBatch = 32;

// Kernels encode into fixed rooms, a second one moves the used bytes to pinned memory: one wait per
// batch, and nothing but used bytes crosses the bus.
class PlaneEncoder {
 public:
  // Null when there is not enough memory.
  static std::unique_ptr<PlaneEncoder> Create(int head_dim);

  // At most kMaxPlaneBatch pages, whose tiles are complete at `written`.
  void Encode(std::span<const PlaneEncodeParams> pages, cudaEvent_t written);
  // The same, but the planes stay in device memory: DeviceChunks::EncodePlanes.
  bool Store(std::span<PlaneEncodeParams> pages, cudaEvent_t written,
             std::span<const DeviceChunks::Table> tables, const std::function<bool()>& place);

 private:
  explicit PlaneEncoder(int head_dim);
  std::byte* Room(size_t page, int plane) const {
    return device_.get() + offset_.planes + page * page_room_ + plane_offset_[plane];
  }
  void EncodeIntoRooms(std::span<const PlaneEncodeParams> pages, cudaEvent_t written,
                       bool all_planes);
  void Wait() const;

  std::mutex mutex_;
  const Stream stream_{Stream::Priority::kHigh};
  const Event done_;
  std::array<size_t, kNumPlanes> plane_offset_ = {};  // in a page's room
  size_t page_room_ = 0;
  struct {
    size_t pages = 0, plane_bytes = 0, moves = 0, planes = 0;
  } offset_;  // the same on both sides
  DeviceMemory device_;
  PinnedMemory pinned_;
};

// Uploads pages a few at a time on a copy stream, so that copying into pinned memory, the bus and
// the kernels overlap. Planes that lie in device memory are decoded where they are.
class PlaneDecoder {
 public:
  static std::unique_ptr<PlaneDecoder> Create(int head_dim);

  // At most kMaxPlaneBatch pages. The tiles are written when it returns.
  void Decode(std::span<const PlaneDecodeParams> pages);

 private:
  static constexpr int kPagesPerUpload = 8;
  static constexpr int kMaxUploads = kMaxPlaneBatch / kPagesPerUpload;

  explicit PlaneDecoder(int head_dim);

  std::mutex mutex_;
  const Stream copy_stream_{Stream::Priority::kHigh};
  const Stream stream_{Stream::Priority::kHigh};
  const std::array<Event, kMaxUploads> uploaded_;
  const Event done_;
  struct {
    size_t pages = 0, ok = 0, planes = 0;
  } offset_;
  DeviceMemory device_;
  PinnedMemory pinned_;
};

// Whole tiles, for codecs that work on the host.
class TileCopier {
 public:
  static std::unique_ptr<TileCopier> Create();

  void Read(std::span<const std::byte* const> tiles, size_t tile_bytes, cudaEvent_t written,
            std::byte* to);
  void Write(std::span<std::byte* const> tiles, size_t tile_bytes, const std::byte* from);

 private:
  static constexpr size_t kPinnedBytes = size_t{1} << 20;  // several tiles of the largest size

  TileCopier() = default;

  std::mutex mutex_;
  const Stream stream_{Stream::Priority::kHigh};
  const Event done_;
  PinnedMemory pinned_ = AllocatePinned(kPinnedBytes);
};

}  // namespace lynx::cuda
