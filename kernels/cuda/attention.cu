// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/launch.h"

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

void Attention(cudaStream_t stream, const AttentionCall& call) {
  switch (call.pool.layout.head_dim) {
    case 16:
      LaunchTiles<16>(stream, call);
      break;
    case 32:
      LaunchTiles<32>(stream, call);
      break;
    case 64:
      LaunchTiles<64>(stream, call);
      break;
    case 96:
      LaunchTiles<96>(stream, call);
      break;
    case 128:
      LaunchTiles<128>(stream, call);
      break;
    case 256:
      LaunchTiles<256>(stream, call);
      break;
    default:
      AbortOnError(cudaErrorInvalidValue, "Attention: head_dim");
  }
  LaunchAttentionMerge(stream, call);
}

}  // namespace lynx::cuda
