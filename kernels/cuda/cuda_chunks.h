// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/cuda/memory.h"
#include "kernels/cuda/plane_transfer.h"
#include "kernels/cuda/range_allocator.h"
#include "kernels/cuda/stream.h"
#include "lynx/device_chunks.h"

namespace lynx::cuda {

class CudaChunks final : public DeviceChunks {
 public:
  // Null when there is not enough memory. The encoder and the events (one per layer, as for
  // PlaneEncoder) outlive it.
  static std::unique_ptr<CudaChunks> Create(int device, PlaneEncoder& encoder,
                                            const std::vector<Event>& kv_written);

  bool Reserve(size_t bytes) override;
  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* chunk) override;
  void UseDevice() const override;
  void Copy(void* to, const void* from, size_t bytes) const override;
  void Checksums(std::span<const std::span<const std::byte>> chunks,
                 uint64_t* checksums) const override;
  bool EncodePlanes(std::span<PlaneEncodeParams> pages, std::span<const Table> tables,
                    const std::function<bool()>& place) const override;

 private:
  CudaChunks(int device, PlaneEncoder& encoder, const std::vector<Event>& kv_written);

  const int device_;
  PlaneEncoder& encoder_;
  const std::vector<Event>& kv_written_;

  std::mutex ranges_mutex_;
  DeviceMemory chunks_;
  std::optional<RangeAllocator> ranges_;  // of chunks_

  mutable std::mutex stream_mutex_;
  const Stream stream_{Stream::Priority::kHigh};
  const Event done_;
  DeviceMemory sums_;  // unsigned long long [kMaxChecksums]
  PinnedMemory pinned_sums_;
};

}  // namespace lynx::cuda
