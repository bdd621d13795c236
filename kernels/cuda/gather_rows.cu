// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gather_rows.cuh"
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/launch.h"

namespace lynx::cuda {

void GatherRows(cudaStream_t stream, const float* x, const int32_t* rows, int num_rows, int dim,
                float* y) {
  if (num_rows == 0) return;
  const auto columns = static_cast<unsigned>((dim + kGatherRowsThreads - 1) / kGatherRowsThreads);
  Launch({.grid = dim3(static_cast<unsigned>(num_rows), columns),
          .block = dim3(kGatherRowsThreads),
          .stream = stream},
         GatherRowsKernel, GatherRowsArgs{.x = x, .rows = rows, .dim = dim, .y = y},
         "GatherRowsKernel");
}

cudaError_t CheckDeviceCode() {
#ifdef LYNX_SIMT
  return cudaSuccess;
#else
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, GatherRowsKernel);
#endif
}

}  // namespace lynx::cuda
