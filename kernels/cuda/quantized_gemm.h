// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/weight.h"
#include "lynx/backend.h"

namespace lynx::cuda {

// One output of a Gemm whose weight is quantized. The result for a row is the CPU's, bit for bit,
// whatever the number of rows. x: `rows` rows by QuantizeRows.
void QuantizedGemm(cudaStream_t stream, const Int8Activations& x, int rows,
                   const DeviceWeight& weight, const GemmOutput& output);

}  // namespace lynx::cuda
