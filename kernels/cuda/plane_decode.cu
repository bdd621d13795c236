// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_decode.cuh"
#include "kernels/cuda/plane_decode.h"

namespace lynx::cuda {

void PlaneDecode(cudaStream_t stream, const PlaneDecodePage* pages, int num_pages, uint8_t* ok) {
  if (num_pages == 0) return;
  Launch({.grid = dim3(static_cast<unsigned>(num_pages)),
          .block = dim3(kPlaneThreads),
          .stream = stream},
         PlaneDecodeKernel, PlaneDecodeArgs{.pages = pages, .ok = ok}, "PlaneDecodeKernel");
}

}  // namespace lynx::cuda
