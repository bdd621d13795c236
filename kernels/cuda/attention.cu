// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/shared_memory.h"

namespace lynx::cuda {
namespace {

template <int kHeadDim>
void LaunchTiles(cudaStream_t stream, const AttentionCall& call) {
  using Narrow = NarrowShape<kHeadDim>;
  using Wide = WideShape<kHeadDim>;
  AttentionArgs args = MakeAttentionArgs(call);
  const auto num_kv_heads = static_cast<unsigned>(args.num_kv_heads);
  if (call.work.num_narrow > 0) {
    args.units = call.work.narrow;
    Launch({.grid = dim3(call.work.num_narrow, num_kv_heads),
            .block = dim3(Narrow::kThreads),
            .shared_bytes = Narrow::kSharedBytes,
            .stream = stream},
           AttentionNarrowKernel<kHeadDim>, args, "AttentionNarrowKernel");
  }
  if (call.work.num_wide > 0) {
    args.units = call.work.wide;
    Launch({.grid = dim3(call.work.num_wide, num_kv_heads),
            .block = dim3(Wide::kThreads),
            .shared_bytes = Wide::kSharedBytes,
            .stream = stream},
           AttentionWideKernel<kHeadDim>, args, "AttentionWideKernel");
  }
}

// use(std::integral_constant<int, head_dim>).
template <typename Use>
auto ForHeadDim(int head_dim, Use use) {
  switch (head_dim) {
    case 16:
      return use(std::integral_constant<int, 16>{});
    case 32:
      return use(std::integral_constant<int, 32>{});
    case 64:
      return use(std::integral_constant<int, 64>{});
    case 96:
      return use(std::integral_constant<int, 96>{});
    case 128:
      return use(std::integral_constant<int, 128>{});
    case 256:
      return use(std::integral_constant<int, 256>{});
  }
  AbortOnError(cudaErrorInvalidValue, "Attention: head_dim");
  std::abort();
}

}  // namespace

void LaunchAttentionMerge(cudaStream_t stream, const AttentionCall& call) {
  if (call.work.num_merges == 0) return;
  Launch({.grid = dim3(call.work.num_merges, static_cast<unsigned>(call.pool.layout.num_kv_heads)),
          .block = dim3(kMergeWarps * kWarpSize),
          .stream = stream},
         AttentionMergeKernel,
         AttentionMergeArgs{.attention = MakeAttentionArgs(call),
                            .merges = call.work.merges,
                            .head_dim = call.pool.layout.head_dim},
         "AttentionMergeKernel");
}

bool HasWideAttention(int head_dim) {
  return ForHeadDim(head_dim,
                    [](auto dim) { return HasSharedMemory(WideShape<dim()>::kSharedBytes); });
}

void Attention(cudaStream_t stream, const AttentionCall& call) {
  ForHeadDim(call.pool.layout.head_dim, [&](auto dim) { LaunchTiles<dim()>(stream, call); });
  LaunchAttentionMerge(stream, call);
}

}  // namespace lynx::cuda
