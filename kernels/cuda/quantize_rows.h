// SPDX-License-Identifier: Apache-2.0
// 8-bit activations: for each row and block of 32 inputs q = round(x / scale), scale = max |x| /
// 127 (docs/numerics.md).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace lynx::cuda {

inline constexpr int kQuantBlock = 32;  // inputs that share a scale
inline constexpr int kRowTile = 8;      // rows of one product of the tensor core

// Device memory, each array 16-byte aligned. Rows are cut into tiles of 8, the last filled up with
// zeros. A tile's block is the B operand of MmaInt8 (mma.cuh) lane by lane: lane 4 g + t holds the
// codes 4 t .. 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3 of row g.
struct Int8Activations {
  uint32_t* codes = nullptr;     // [tiles][blocks][32][2]
  float* scales = nullptr;       // [tiles][blocks][8]
  float* scaled_sums = nullptr;  // [tiles][blocks][8]: scale · sum of the codes
};

inline int NumRowTiles(int rows) { return (rows + kRowTile - 1) / kRowTile; }

// Bytes of all three arrays, and the arrays in that much memory (256-byte aligned).
size_t Int8ActivationBytes(int rows, int64_t k);
Int8Activations Int8ActivationsAt(std::byte* memory, int rows, int64_t k);

// x [rows, k] on the device, 16-byte aligned; k a multiple of 32.
void QuantizeRows(cudaStream_t stream, const float* x, int rows, int64_t k,
                  const Int8Activations& out);

}  // namespace lynx::cuda
