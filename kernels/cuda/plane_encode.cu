// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_encode.cuh"
#include "kernels/cuda/plane_encode.h"

namespace lynx::cuda {

void PlaneEncode(cudaStream_t stream, const PlaneEncodePage* pages, int num_pages,
                 uint32_t* plane_bytes) {
  if (num_pages == 0) return;
  Launch({.grid = dim3(static_cast<unsigned>(num_pages)),
          .block = dim3(kPlaneThreads),
          .stream = stream},
         PlaneEncodeKernel, PlaneEncodeArgs{.pages = pages, .plane_bytes = plane_bytes},
         "PlaneEncodeKernel");
}

}  // namespace lynx::cuda
