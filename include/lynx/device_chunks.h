// SPDX-License-Identifier: Apache-2.0
// Chunks of a hand-off that stay in a device's memory: encoded there, sent from there, received
// there and decoded from there. For transports that reach such memory; without one, and where a
// chunk finds no room here, planes pass through host memory (Backend::PlaneEncode, PlaneDecode).
//
// Pointers are the device's, except where "host" is said. Every method works for the calling thread
// alone and may be called from any thread at the same time as anything else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "lynx/memory_view.h"
#include "lynx/plane_format.h"

namespace lynx {

// What the padding between the planes of a chunk fills up to, and what chunks are aligned to.
inline constexpr size_t kChunkAlignment = 16;
constexpr size_t PaddedChunkBytes(size_t bytes) {
  return (bytes + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
}

// The checksum of a payload (handoff/wire.h) is the sum of its pieces' xxHash64, the piece's number
// being the seed: a device computes all pieces at once.
inline constexpr size_t kChecksumPieceBytes = 1024;

class DeviceChunks {
 public:
  virtual ~DeviceChunks() = default;

  // Sets memory aside for chunks. Once, at start-up; without it Allocate finds no room. False when
  // there is not so much.
  virtual bool Reserve(size_t bytes) = 0;
  // Aligned to 256 bytes, contents undefined. Null: no room now.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* chunk) = 0;

  // Makes the device the calling thread's, as libraries want that are given its memory.
  virtual void UseDevice() const = 0;
  // Between any two of the device and the host; waits.
  virtual void Copy(void* to, const void* from, size_t bytes) const = 0;
  // checksums: host, [chunks.size()], at most kMaxChecksums.
  static constexpr size_t kMaxChecksums = 8;
  virtual void Checksums(std::span<const std::span<const std::byte>> chunks,
                         uint64_t* checksums) const = 0;

  // Encodes a batch of pages of one layer and stores their planes where `place` says: it is called
  // once, when every page's plane_bytes is known, and fills in `planes` (aligned to kChunkAlignment
  // and, when stored, filled up to it with zeros; null: not stored) and `tables`, host bytes that
  // are stored on the device too. False, with nothing stored, when `place` answers false or there
  // are more pages than Backend::max_plane_batch().
  struct Table {
    std::byte* to = nullptr;
    std::span<const std::byte> bytes;
  };
  virtual bool EncodePlanes(std::span<PlaneEncodeParams> pages, std::span<const Table> tables,
                            const std::function<bool()>& place) const = 0;
};

}  // namespace lynx
