// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunk_checksum.cuh"
#include "kernels/cuda/chunk_checksum.h"
#include "kernels/cuda/launch.h"

namespace lynx::cuda {

void ChunkChecksum(cudaStream_t stream, std::span<const std::span<const std::byte>> chunks,
                   unsigned long long* sums) {
  if (chunks.empty()) return;
  ChunkChecksumArgs args{.sums = sums};
  size_t longest = 1;
  for (size_t i = 0; i < chunks.size(); ++i) {
    args.chunks[i] = chunks[i].data();
    args.bytes[i] = chunks[i].size();
    longest = longest > chunks[i].size() ? longest : chunks[i].size();
  }
  constexpr size_t kBlockBytes = kChecksumThreads * kChecksumPieceBytes;
  const auto blocks = static_cast<unsigned>((longest + kBlockBytes - 1) / kBlockBytes);
  AbortOnError(cudaMemsetAsync(sums, 0, chunks.size() * sizeof(*sums), stream), "cudaMemsetAsync");
  Launch({.grid = dim3(blocks, static_cast<unsigned>(chunks.size())),
          .block = dim3(kChecksumThreads),
          .stream = stream},
         ChunkChecksumKernel, args, "ChunkChecksumKernel");
}

}  // namespace lynx::cuda
