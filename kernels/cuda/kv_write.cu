// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/kv_write.cuh"
#include "kernels/cuda/kv_write.h"
#include "kernels/cuda/launch.h"

namespace lynx::cuda {

void KvWrite(cudaStream_t stream, const KvRows& params) {
  if (params.rows == 0) return;
  const KvLayout& layout = params.pool.layout;
  const auto tiles = [](int n) {
    return static_cast<unsigned>((n + kKvWriteTile - 1) / kKvWriteTile);
  };
  const auto begin = [&](KvKind kind) {
    return static_cast<int64_t>(layout.tile_offset(params.layer, kind, 0) / sizeof(Bf16));
  };
  Launch({.grid = dim3(tiles(params.rows), tiles(layout.head_dim),
                       static_cast<unsigned>(2 * layout.num_kv_heads)),
          .block = dim3(kKvWriteWarps * kWarpSize),
          .stream = stream},
         KvWriteKernel,
         KvWriteArgs{.source = {params.k, params.v},
                     .slots = params.slots,
                     .rows = params.rows,
                     .num_kv_heads = layout.num_kv_heads,
                     .head_dim = layout.head_dim,
                     .pool = reinterpret_cast<Bf16*>(params.pool.base),
                     .block_stride = static_cast<int64_t>(layout.block_bytes() / sizeof(Bf16)),
                     .tile_begin = {begin(KvKind::kKey), begin(KvKind::kValue)}},
         "KvWriteKernel");
}

}  // namespace lynx::cuda
