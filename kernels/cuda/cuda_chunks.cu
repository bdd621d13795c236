// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/chunk_checksum.h"
#include "kernels/cuda/cuda_chunks.h"

namespace lynx::cuda {

static_assert(DeviceChunks::kMaxChecksums == kMaxChecksumChunks);
static_assert(RangeAllocator::kAlignment % kChunkAlignment == 0);

CudaChunks::CudaChunks(int device, PlaneEncoder& encoder, const std::vector<Event>& kv_written)
    : device_(device),
      encoder_(encoder),
      kv_written_(kv_written),
      sums_(AllocateDevice(kMaxChecksums * sizeof(unsigned long long))),
      pinned_sums_(AllocatePinned(kMaxChecksums * sizeof(unsigned long long))) {}

std::unique_ptr<CudaChunks> CudaChunks::Create(int device, PlaneEncoder& encoder,
                                               const std::vector<Event>& kv_written) {
  std::unique_ptr<CudaChunks> chunks(new CudaChunks(device, encoder, kv_written));
  if (chunks->sums_ == nullptr || chunks->pinned_sums_ == nullptr) return nullptr;
  return chunks;
}

void CudaChunks::UseDevice() const { AbortOnError(cudaSetDevice(device_), "cudaSetDevice"); }

bool CudaChunks::Reserve(size_t bytes) {
  UseDevice();
  std::lock_guard lock(ranges_mutex_);
  chunks_ = AllocateDevice(bytes);
  if (chunks_ == nullptr) return false;
  ranges_.emplace(bytes);
  return true;
}

std::byte* CudaChunks::Allocate(size_t bytes) {
  std::lock_guard lock(ranges_mutex_);
  if (!ranges_) return nullptr;
  const std::optional<size_t> offset = ranges_->Allocate(bytes);
  return offset ? chunks_.get() + *offset : nullptr;
}

void CudaChunks::Free(std::byte* chunk) {
  std::lock_guard lock(ranges_mutex_);
  if (ranges_ && ranges_->Free(static_cast<size_t>(chunk - chunks_.get()))) return;
  std::fprintf(stderr, "CUDA back-end: a chunk is freed that was not allocated\n");
  std::abort();
}

void CudaChunks::Copy(void* to, const void* from, size_t bytes) const {
  UseDevice();
  std::lock_guard lock(stream_mutex_);
  stream_.Copy(to, from, bytes, cudaMemcpyDefault);
  done_.Record(stream_);
  done_.Synchronize();
}

void CudaChunks::Checksums(std::span<const std::span<const std::byte>> chunks,
                           uint64_t* checksums) const {
  UseDevice();
  std::lock_guard lock(stream_mutex_);
  auto* sums = ArrayAt<unsigned long long>(sums_.get(), 0);
  auto* pinned = ArrayAt<unsigned long long>(pinned_sums_.get(), 0);
  ChunkChecksum(stream_.get(), chunks, sums);
  stream_.Copy(pinned, sums, chunks.size() * sizeof(*sums), cudaMemcpyDeviceToHost);
  done_.Record(stream_);
  done_.Synchronize();
  std::copy_n(pinned, chunks.size(), checksums);
}

bool CudaChunks::EncodePlanes(std::span<PlaneEncodeParams> pages, std::span<const Table> tables,
                              const std::function<bool()>& place) const {
  if (pages.size() > kMaxPlaneBatch) return false;
  UseDevice();
  return encoder_.Store(pages, kv_written_[pages[0].shape.layer].get(), tables, place);
}

}  // namespace lynx::cuda
