// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_attention.cuh"
#include "kernels/cuda/plane_attention.h"
#include "kernels/cuda/shared_memory.h"

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

// use(std::integral_constant<int, head_dim>).
template <typename Use>
auto ForHeadDim(int head_dim, Use use) {
  switch (head_dim) {
    case 64:
      return use(std::integral_constant<int, 64>{});
    case 96:
      return use(std::integral_constant<int, 96>{});
    case 128:
      return use(std::integral_constant<int, 128>{});
    case 256:
      return use(std::integral_constant<int, 256>{});
  }
  AbortOnError(cudaErrorInvalidValue, "PlaneAttention: head_dim");
  std::abort();
}

}  // namespace

bool HasPlaneAttention(int head_dim) {
  return ForHeadDim(
      head_dim, [](auto dim) { return HasSharedMemory(kPlaneSharedBytes<NarrowShape<dim()>>); });
}

void PlaneAttention(cudaStream_t stream, const PlaneAttentionCall& call) {
  ForHeadDim(call.attention.pool.layout.head_dim,
             [&](auto dim) { LaunchTiles<dim()>(stream, call); });
  LaunchAttentionMerge(stream, call.attention);
}

}  // namespace lynx::cuda
