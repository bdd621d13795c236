// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/plane_store.cuh"
#include "kernels/cuda/plane_store.h"

namespace lynx::cuda {

void StorePlanes(cudaStream_t stream, const PlaneMove* moves, int num_moves) {
  if (num_moves == 0) return;
  Launch({.grid = dim3(static_cast<unsigned>(num_moves)),
          .block = dim3(kPlaneStoreThreads),
          .stream = stream},
         PlaneStoreKernel, PlaneStoreArgs{.moves = moves}, "PlaneStoreKernel");
}

}  // namespace lynx::cuda
