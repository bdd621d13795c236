// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/accept.cuh"
#include "kernels/cuda/accept.h"
#include "kernels/cuda/launch.h"

namespace lynx::cuda {

void Accept(cudaStream_t stream, const AcceptParams& params) {
  if (params.num_groups == 0) return;
  const auto blocks = static_cast<unsigned>((params.num_groups + kAcceptWarps - 1) / kAcceptWarps);
  Launch({.grid = dim3(blocks), .block = dim3(kAcceptWarps * kWarpSize), .stream = stream},
         AcceptKernel,
         AcceptArgs{.groups = params.groups,
                    .num_groups = params.num_groups,
                    .drafts = params.drafts,
                    .stop_tokens = params.stop_tokens,
                    .choices = params.choices,
                    .results = params.results},
         "AcceptKernel");
}

}  // namespace lynx::cuda
