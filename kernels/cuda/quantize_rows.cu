// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantize_rows.cuh"
#include "kernels/cuda/quantize_rows.h"

namespace lynx::cuda {
namespace {

// Blocks of all row tiles.
size_t TileBlocks(int rows, int64_t k) { return size_t(NumRowTiles(rows)) * (k / kQuantBlock); }

constexpr size_t kCodeBytes = size_t{kRowTile} * kQuantBlock;  // of a tile's block
constexpr size_t kScaleBytes = kRowTile * sizeof(float);

}  // namespace

size_t Int8ActivationBytes(int rows, int64_t k) {
  return TileBlocks(rows, k) * (kCodeBytes + 2 * kScaleBytes);
}

Int8Activations Int8ActivationsAt(std::byte* memory, int rows, int64_t k) {
  const size_t blocks = TileBlocks(rows, k);
  std::byte* scales = memory + blocks * kCodeBytes;
  return {.codes = reinterpret_cast<uint32_t*>(memory),
          .scales = reinterpret_cast<float*>(scales),
          .scaled_sums = reinterpret_cast<float*>(scales + blocks * kScaleBytes)};
}

void QuantizeRows(cudaStream_t stream, const float* x, int rows, int64_t k,
                  const Int8Activations& out) {
  if (rows == 0) return;
  constexpr int64_t kInputs = int64_t{kQuantizeRowsWarps} * kBlocksPerWarp * kQuantBlock;
  const auto columns = static_cast<unsigned>((k + kInputs - 1) / kInputs);
  Launch({.grid = dim3(static_cast<unsigned>(NumRowTiles(rows) * kRowTile), columns),
          .block = dim3(kQuantizeRowsWarps * kWarpSize),
          .stream = stream},
         QuantizeRowsKernel,
         QuantizeRowsArgs{.x = x,
                          .rows = rows,
                          .k = k,
                          .codes = out.codes,
                          .scales = out.scales,
                          .scaled_sums = out.scaled_sums},
         "QuantizeRowsKernel");
}

}  // namespace lynx::cuda
