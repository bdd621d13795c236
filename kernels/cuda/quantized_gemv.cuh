// SPDX-License-Identifier: Apache-2.0
// Quantized weights times few rows (decode, drafts, verification): weights are read once and are
// all that counts. The tensor core computes 8 rows for the price of one, which __dp4a would not.
//
// A block takes a panel of 16 outputs. It walks over K in passes of 32 quantization blocks, 4 a
// warp: every lane loads the next pass's weights, 16 bytes at a time, while the integer dots of
// this one go to shared memory as [block][row][output]; then one thread for each (row, output)
// adds the pass to its sum, block by block in the order of K. So that order does not depend on how
// the dots were spread over warps. Moves 34/32 (Q8_0), 18/32 (Q4_0), 20/32 (Q4_1) bytes per weight.
#pragma once

#include "kernels/cuda/quantized_format.cuh"

namespace lynx::cuda {

inline constexpr int kGemvWarps = 8;
inline constexpr int kGemvWarpBlocks = 4;  // of a pass
inline constexpr int kGemvPass = kGemvWarps * kGemvWarpBlocks;
// Floats between the rows of a block's dots: the lanes of a fragment, and those of the sums, then
// all lie in different banks.
inline constexpr int kDotStride = 20;
inline constexpr int kTileDots = kRowTile * kDotStride;

// What a thread has loaded of a pass: its warp's codes, and the scales of one block.
template <typename Format>
struct GemvLoads {
  static constexpr int kChunks = kGemvWarpBlocks / Format::kChunkBlocks;
  uint4 codes[kChunks];
  ScaleWords scales;
};

template <typename Format>
__device__ void LoadPass(const QuantizedMatrix& w, int panel, int first, GemvLoads<Format>& loads) {
  const int thread = static_cast<int>(threadIdx.x);
  const int begin = first + thread / kWarpSize * kGemvWarpBlocks;
#pragma unroll
  for (int c = 0; c < GemvLoads<Format>::kChunks; ++c) {
    const int block = begin + c * Format::kChunkBlocks;
    if (block >= w.blocks) continue;
    loads.codes[c] = LoadChunk<Format>(w, panel, block / Format::kChunkBlocks, thread % kWarpSize);
  }
  const int block = first + thread / 8;
  if (block < w.blocks) loads.scales = LoadScales<Format>(w, panel, block, thread % 8);
}

// The scales of a pass, [block][output]: loads come one block for eight threads.
struct SharedScales {
  Shared<float> scale;
  Shared<float> min;
};

__device__ inline void StoreScales(const ScaleWords& words, bool has_min, const SharedScales& out) {
  const LaneScales scales = ToScales(words);
  const int at = static_cast<int>(threadIdx.x) / 8 * kPanel + static_cast<int>(threadIdx.x) % 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out.scale[at + 8 * i] = scales.scale[i];
    if (has_min) out.min[at + 8 * i] = scales.min[i];
  }
}

// The dots of this warp's blocks with kRowTiles tiles of rows.
template <typename Format, int kRowTiles>
__device__ void StoreDots(const ActivationArgs& x, int blocks, int first,
                          const GemvLoads<Format>& loads, Shared<float> dots) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int g = lane / 4, t = lane % 4;
  const int begin = static_cast<int>(threadIdx.x) / kWarpSize * kGemvWarpBlocks;
  const int left = blocks - first - begin;
  uint2 codes[kGemvWarpBlocks][kRowTiles];  // all on their way before the first is used
#pragma unroll
  for (int i = 0; i < kGemvWarpBlocks * kRowTiles; ++i) {
    const int block = i / kRowTiles, tile = i % kRowTiles;
    if (block >= left) continue;
    const int64_t at = int64_t{tile} * blocks + first + begin + block;
    codes[block][tile] = Cast<const uint2>(x.codes)[at * kWarpSize + lane];
  }
#pragma unroll
  for (int i = 0; i < kGemvWarpBlocks; ++i) {
    if (i >= left) break;
    uint32_t a[4];
    Format::Unpack(loads.codes[i / Format::kChunkBlocks], i % Format::kChunkBlocks, a);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const uint32_t b[2] = {codes[i][tile].x, codes[i][tile].y};
      float sums[4];
      BlockDots(a, b, sums);
      const Shared<float> to = dots + ((begin + i) * kRowTiles + tile) * kTileDots;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        to[(2 * t + j % 2) * kDotStride + g + j / 2 * 8] = sums[j];
      }
    }
  }
}

// Adds a pass to the sum of one (row, output).
template <typename Format, int kRowTiles>
__device__ float AddPass(const ActivationArgs& x, int blocks, int first, int tile, int row,
                         int output, Shared<const float> dots, const SharedScales& scales,
                         float sum) {
  const int left = blocks - first;
  const int count = left < kGemvPass ? left : kGemvPass;
  const int64_t x_at = (int64_t{tile} * blocks + first) * kRowTile + row;
  const Shared<const float> from = dots + tile * kTileDots + row * kDotStride + output;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const float dot = from[i * kRowTiles * kTileDots];
    const float w_scale = scales.scale[i * kPanel + output];
    const float x_scale = x.scales[x_at + i * kRowTile];
    sum = fmaf(dot, w_scale * x_scale, sum);
    if constexpr (Format::kHasMin) {
      const float min = scales.min[i * kPanel + output];
      const float x_sum = x.scaled_sums[x_at + i * kRowTile];
      sum = fmaf(min, x_sum, sum);
    }
  }
  return sum;
}

// kRowTiles (1 or 2) tiles of 8 rows are all rows there are.
// budget: QuantizedGemvKernel registers 80 shared 45056 threads 256
template <typename Format, int kRowTiles>
__global__ void __launch_bounds__(kGemvWarps* kWarpSize, 3)
    QuantizedGemvKernel(QuantizedGemmArgs args) {
  LYNX_SHARED(float, dots, kGemvPass* kRowTiles* kTileDots);
  LYNX_SHARED(float, scale, kGemvPass* kPanel);
  LYNX_SHARED(float, min, Format::kHasMin ? kGemvPass* kPanel : 1);
  const SharedScales scales{.scale = scale, .min = min};
  // The sum of this thread: four warps take a tile of rows, each 4 of its rows and 8 outputs.
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int tile = thread / (kRowTile * kPanel), part = thread / kWarpSize % 4;
  const int row = lane / 8 * 2 + part / 2, output = lane % 8 + part % 2 * 8;

  const QuantizedOutput out = OutputOfBlock(args);
  const int panel = static_cast<int>(blockIdx.x) - out.first_block, blocks = out.weight.blocks;
  float sum = 0;
  GemvLoads<Format> next;
  LoadPass(out.weight, panel, 0, next);
  for (int first = 0; first < blocks; first += kGemvPass) {
    const GemvLoads<Format> loads = next;
    if (first + kGemvPass < blocks) LoadPass(out.weight, panel, first + kGemvPass, next);
    StoreScales(loads.scales, Format::kHasMin, scales);
    StoreDots<Format, kRowTiles>(args.x, blocks, first, loads, dots);
    __syncthreads();
    if (tile < kRowTiles) {
      sum = AddPass<Format, kRowTiles>(args.x, blocks, first, tile, row, output, dots, scales, sum);
    }
    __syncthreads();
  }
  if (tile >= kRowTiles) return;
  StoreResult(out.result, tile * kRowTile + row, int64_t{panel} * kPanel + output, sum);
}

}  // namespace lynx::cuda
