// SPDX-License-Identifier: Apache-2.0
// Quantized weights times many rows (prefill): the arithmetic of quantized_format.cuh, with every
// sum in a register of one thread for all of K.
//
// A block takes 128 outputs and 64 rows; a warp 2 panels of 16 outputs against all 64 rows. The
// activations of 4 quantization blocks at a time come to shared memory, copied while the four
// before them are used; weights go from global memory to registers, one chunk ahead. Reads each
// weight once for 64 rows and each activation once for 128 outputs. A block of 32 inputs is 64
// operations of the tensor core and 3 instructions of the float pipes (4 for Q4_1) for each row and
// output; the latter are the bound.
#pragma once

#include "kernels/cuda/quantized_format.cuh"

namespace lynx::cuda {

inline constexpr int kGemmWarps = 4;
inline constexpr int kGemmThreads = kGemmWarps * kWarpSize;
inline constexpr int kGemmWarpPanels = 2;
inline constexpr int kGemmPanels = kGemmWarps * kGemmWarpPanels;
inline constexpr int kGemmRowTiles = 8;
inline constexpr int kGemmStage = 4;                        // quantization blocks
inline constexpr int kBlockBytes = kRowTile * kQuantBlock;  // codes of a row tile's block

// The activations of a stage in shared memory.
struct GemmStage {
  Shared<std::byte> codes;        // [row tile][block][lane][2] words
  Shared<std::byte> scales;       // [row tile][block][8] floats
  Shared<std::byte> scaled_sums;  // same
};
inline constexpr int kStageCodeBytes = kGemmRowTiles * kGemmStage * kBlockBytes;
inline constexpr int kStageScaleBytes = kGemmRowTiles * kGemmStage * kRowTile * 4;
inline constexpr int kStageBytes = kStageCodeBytes + 2 * kStageScaleBytes;

__device__ inline GemmStage StageAt(Shared<std::byte> shared, int number) {
  const Shared<std::byte> at = shared + number % 2 * kStageBytes;
  return {.codes = at,
          .scales = at + kStageCodeBytes,
          .scaled_sums = at + kStageCodeBytes + kStageScaleBytes};
}

// Copies [row_tiles][kGemmStage blocks] of `bytes` each, as far as there are blocks.
__device__ inline void CopyBlocks(Global<const std::byte> from, int bytes, int blocks, int first,
                                  int row_tiles, Shared<std::byte> to) {
  const int pieces = bytes / 16;  // of a block
  const int count = row_tiles * kGemmStage * pieces;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kGemmThreads) {
    const int piece = i % pieces, block = i / pieces % kGemmStage;
    const int tile = i / (pieces * kGemmStage);
    if (first + block >= blocks) continue;
    CopyAsync16(to + i * 16,
                from + ((int64_t{tile} * blocks + first + block) * bytes + piece * 16));
  }
}

template <typename Format>
__device__ void CopyStage(const ActivationArgs& x, int blocks, int first_tile, int row_tiles,
                          int first, const GemmStage& stage) {
  const int64_t begin = int64_t{first_tile} * blocks;
  CopyBlocks(Cast<const std::byte>(x.codes + begin * (kBlockBytes / 4)), kBlockBytes, blocks, first,
             row_tiles, stage.codes);
  CopyBlocks(Cast<const std::byte>(x.scales + begin * kRowTile), kRowTile * 4, blocks, first,
             row_tiles, stage.scales);
  if constexpr (Format::kHasMin) {
    CopyBlocks(Cast<const std::byte>(x.scaled_sums + begin * kRowTile), kRowTile * 4, blocks, first,
               row_tiles, stage.scaled_sums);
  }
  CopyCommit();
}

// A warp's weights: of a chunk as loaded, and of one of its blocks. 2 panels.
template <typename Format>
struct WarpChunk {
  uint4 codes[kGemmWarpPanels];
  ScaleWords scales[kGemmWarpPanels][Format::kChunkBlocks];
};
struct WarpWeights {
  uint32_t codes[kGemmWarpPanels][4];
  LaneScales scales[kGemmWarpPanels];
};
using WarpSums = float[kGemmWarpPanels][kGemmRowTiles][4];

// Adds block number `block` of a stage to the sums of all row tiles.
template <typename Format>
__device__ void AddBlock(const GemmStage& stage, int block, int row_tiles, const WarpWeights& w,
                         WarpSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int tile = 0; tile < kGemmRowTiles; ++tile) {
    if (tile >= row_tiles) break;
    const int at = tile * kGemmStage + block;
    const uint2 words = Cast<const uint2>(stage.codes)[at * kWarpSize + lane];
    const float2 x = Cast<const float2>(stage.scales)[at * (kRowTile / 2) + lane % 4];
    const uint32_t b[2] = {words.x, words.y};
    const float x_scale[2] = {x.x, x.y};
    float x_sum[2] = {0, 0};
    if constexpr (Format::kHasMin) {
      const float2 s = Cast<const float2>(stage.scaled_sums)[at * (kRowTile / 2) + lane % 4];
      x_sum[0] = s.x;
      x_sum[1] = s.y;
    }
#pragma unroll
    for (int p = 0; p < kGemmWarpPanels; ++p) {
      float dots[4];
      BlockDots(w.codes[p], b, dots);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& sum = sums[p][tile][i];
        sum = fmaf(dots[i], w.scales[p].scale[i / 2] * x_scale[i % 2], sum);
        if constexpr (Format::kHasMin) sum = fmaf(w.scales[p].min[i / 2], x_sum[i % 2], sum);
      }
    }
  }
}

template <typename Format>
__device__ void LoadChunks(const QuantizedMatrix& w, const int (&panels)[kGemmWarpPanels],
                           int chunk, WarpChunk<Format>& out) {
  const int first = chunk * Format::kChunkBlocks;
  if (first >= w.blocks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int p = 0; p < kGemmWarpPanels; ++p) {
    out.codes[p] = LoadChunk<Format>(w, panels[p], chunk, lane);
#pragma unroll
    for (int i = 0; i < Format::kChunkBlocks; ++i) {
      out.scales[p][i] = LoadScales<Format>(w, panels[p], first + i, lane / 4);
    }
  }
}

// Adds the blocks of one stage, from block `first` of the matrix on. `next` holds the first chunk
// and is left with the next stage's.
template <typename Format>
__device__ void AddStage(const QuantizedMatrix& weight, const GemmStage& stage, int first,
                         int row_tiles, const int (&panels)[kGemmWarpPanels],
                         WarpChunk<Format>& next, WarpSums& sums) {
#pragma unroll
  for (int chunk = 0; chunk < kGemmStage / Format::kChunkBlocks; ++chunk) {
    const WarpChunk<Format> current = next;
    LoadChunks<Format>(weight, panels, first / Format::kChunkBlocks + chunk + 1, next);
#pragma unroll
    for (int i = 0; i < Format::kChunkBlocks; ++i) {
      const int block = chunk * Format::kChunkBlocks + i;
      if (first + block >= weight.blocks) break;
      WarpWeights w;
#pragma unroll
      for (int p = 0; p < kGemmWarpPanels; ++p) {
        Format::Unpack(current.codes[p], i, w.codes[p]);
        w.scales[p] = ToScales(current.scales[p][i]);
      }
      AddBlock<Format>(stage, block, row_tiles, w, sums);
    }
  }
}

__device__ inline void StoreSums(const GemmResult& result, int first_panel, int first_row,
                                 const WarpSums& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int p = 0; p < kGemmWarpPanels; ++p) {
#pragma unroll
    for (int tile = 0; tile < kGemmRowTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreResult(result, first_row + tile * kRowTile + 2 * t + i % 2,
                    int64_t{first_panel + p} * kPanel + g + i / 2 * 8, sums[p][tile][i]);
      }
    }
  }
}

// budget: QuantizedGemmKernel registers 224 shared 20480 threads 128
template <typename Format>
__global__ void __launch_bounds__(kGemmThreads, 2) QuantizedGemmKernel(QuantizedGemmArgs args) {
  LYNX_SHARED(std::byte, shared, 2 * kStageBytes);
  const QuantizedOutput out = OutputOfBlock(args);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize, blocks = out.weight.blocks;
  const int column = static_cast<int>(blockIdx.x) - out.first_block;
  const int first_panel = (column * kGemmWarps + warp) * kGemmWarpPanels;
  const int first_tile = static_cast<int>(blockIdx.y) * kGemmRowTiles;
  const int tiles_left = args.x.row_tiles - first_tile;
  const int row_tiles = tiles_left < kGemmRowTiles ? tiles_left : kGemmRowTiles;
  // Panels past the end repeat the last one; their sums are not stored.
  int panels[kGemmWarpPanels];
#pragma unroll
  for (int p = 0; p < kGemmWarpPanels; ++p) {
    panels[p] = first_panel + p < out.weight.panels ? first_panel + p : out.weight.panels - 1;
  }

  WarpSums sums = {};
  WarpChunk<Format> next = {};
  LoadChunks<Format>(out.weight, panels, 0, next);
  CopyStage<Format>(args.x, blocks, first_tile, row_tiles, 0, StageAt(shared, 0));
  for (int first = 0, stage = 0; first < blocks; first += kGemmStage, ++stage) {
    CopyWait<0>();
    __syncthreads();
    if (first + kGemmStage < blocks) {
      CopyStage<Format>(args.x, blocks, first_tile, row_tiles, first + kGemmStage,
                        StageAt(shared, stage + 1));
    }
    AddStage<Format>(out.weight, StageAt(shared, stage), first, row_tiles, panels, next, sums);
  }
  StoreSums(out.result, first_panel, first_tile * kRowTile, sums);
}

}  // namespace lynx::cuda
