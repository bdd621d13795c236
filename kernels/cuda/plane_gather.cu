// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_gather.cuh"
#include "kernels/cuda/plane_gather.h"

namespace lynx::cuda {

void GatherPlanes(cudaStream_t stream, const PlaneGather& gather) {
  PlaneGatherArgs args{.from = gather.from,
                       .page_stride = static_cast<int64_t>(gather.page_stride),
                       .plane_bytes = gather.plane_bytes,
                       .to = gather.to};
  std::copy(gather.offset.begin(), gather.offset.end(), args.offset);
  const auto blocks = static_cast<unsigned>(gather.num_pages * kNumPlanes);
  Launch({.grid = dim3(blocks), .block = dim3(kPlaneGatherThreads), .stream = stream},
         PlaneGatherKernel, args, "PlaneGatherKernel");
}

}  // namespace lynx::cuda
