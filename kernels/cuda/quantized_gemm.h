// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/quantize_rows.h"
#include "lynx/backend.h"

namespace lynx::cuda {

// Outputs of a Gemm whose weights are quantized and of one type. The result for a row is the CPU's,
// bit for bit, whatever the number of rows. x: `rows` rows by QuantizeRows.
void QuantizedGemm(cudaStream_t stream, const Int8Activations& x, int rows,
                   std::span<const GemmOutput> outputs);

}  // namespace lynx::cuda
