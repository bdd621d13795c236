// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace lynx::cuda {

inline constexpr int kMaxChecksumChunks = 8;

// sums[i] (device): the sum of the xxHash64 of chunk i's pieces of kChecksumPieceBytes, the piece's
// number being the seed. Chunks are in device memory, aligned to 8 bytes; at most
// kMaxChecksumChunks.
void ChunkChecksum(cudaStream_t stream, std::span<const std::span<const std::byte>> chunks,
                   unsigned long long* sums);

}  // namespace lynx::cuda
