// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rms_norm.h"

namespace lynx::cuda {

void RmsNorm(cudaStream_t stream, const float* x, const float* weight, float eps, int64_t n,
             int dim, float* y) {
  if (n == 0) return;
  constexpr int kElements =
      4096;  // of a block: enough loads under way, small enough to share an SM
  const int vectors = std::clamp(kElements / dim, 1, kRmsNormMaxVectors);
  // Two vectors side by side in a warp then lie in different banks.
  const int stride = (dim + 31) / 32 * 32 + kLanes;
  const auto blocks = static_cast<unsigned>((n + vectors - 1) / vectors);
  Launch({.grid = dim3(blocks),
          .block = dim3(kRmsNormThreads),
          .shared_bytes = size_t(vectors) * stride * sizeof(float),
          .stream = stream},
         RmsNormKernel,
         RmsNormArgs{.x = x,
                     .weight = weight,
                     .eps = eps,
                     .n = n,
                     .dim = dim,
                     .vectors = vectors,
                     .stride = stride,
                     .y = y},
         "RmsNormKernel");
}

}  // namespace lynx::cuda
