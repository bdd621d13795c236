// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lynx::cuda {

// Device pointers, [n]; y may be gate or up.
void SiluMul(cudaStream_t stream, const float* gate, const float* up, int64_t n, float* y);

}  // namespace lynx::cuda
