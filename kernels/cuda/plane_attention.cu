// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_attention.cuh"
#include "kernels/cuda/plane_attention.h"

namespace lynx::cuda {
namespace {

template <int kHeadDim>
void LaunchTiles(cudaStream_t stream, const PlaneAttentionCall& call) {
  using Shape = NarrowShape<kHeadDim>;
  const AttentionWork& work = call.attention.work;
  if (work.num_narrow == 0) return;
  PlaneAttentionArgs args{
      .attention = MakeAttentionArgs(call.attention), .blocks = call.blocks, .pages = call.pages};
  args.attention.units = work.narrow;
  Launch({.grid = dim3(work.num_narrow, static_cast<unsigned>(args.attention.num_kv_heads)),
          .block = dim3(Shape::kThreads),
          .shared_bytes = kPlaneSharedBytes<Shape>,
          .stream = stream},
         PlaneAttentionKernel<kHeadDim>, args, "PlaneAttentionKernel");
}

}  // namespace

void PlaneAttention(cudaStream_t stream, const PlaneAttentionCall& call) {
  switch (call.attention.pool.layout.head_dim) {
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
      AbortOnError(cudaErrorInvalidValue, "PlaneAttention: head_dim");
  }
  LaunchAttentionMerge(stream, call.attention);
}

}  // namespace lynx::cuda
