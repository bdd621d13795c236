// SPDX-License-Identifier: Apache-2.0
#include "kernels/common/weight_block.h"
#include "kernels/cuda/embed.cuh"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/launch.h"

namespace lynx::cuda {

void Embed(cudaStream_t stream, const WeightView& table, const TokenId* ids, int rows, float* out) {
  if (rows == 0) return;
  const BlockShape format = WeightBlock(table.type);
  const bool blocks = format.elements > 1;  // else the kernel takes the row for a block
  const auto columns = static_cast<unsigned>((table.k + kEmbedThreads - 1) / kEmbedThreads);
  Launch({.grid = dim3(static_cast<unsigned>(rows), columns),
          .block = dim3(kEmbedThreads),
          .stream = stream},
         EmbedKernel,
         EmbedArgs{.type = table.type,
                   .table = table.data,
                   .row_bytes = static_cast<int64_t>(table.row_bytes),
                   .block_elements = blocks ? format.elements : static_cast<int>(table.k),
                   .block_bytes = format.bytes,
                   .dim = static_cast<int>(table.k),
                   .ids = ids,
                   .out = out},
         "EmbedKernel");
}

}  // namespace lynx::cuda
