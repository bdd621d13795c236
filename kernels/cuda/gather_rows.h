// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lynx::cuda {

// y[i, :] = x[rows[i], :] for i < num_rows. Device pointers, rows too.
void GatherRows(cudaStream_t stream, const float* x, const int32_t* rows, int num_rows, int dim,
                float* y);

// Whether this build has code that the calling thread's device can run: of its architecture, or PTX
// that its driver can compile.
cudaError_t CheckDeviceCode();

}  // namespace lynx::cuda
