// SPDX-License-Identifier: Apache-2.0
// Quantized weights as the tensor core takes them (weight.h has the layout), and the one
// arithmetic of all schedules: for each block of 32 inputs an exact integer dot, then
//   sum = fma(dot, d_w · d_x, sum), and for Q4_1 sum = fma(m_w, d_x · Σ x, sum).
#pragma once

#include "kernels/common/half.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gemm_result.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quantize_rows.h"

namespace lynx::cuda {

inline constexpr int kPanel = 16;  // outputs of one product of the tensor core

struct QuantizedMatrix {
  Global<const uint4> codes;      // [panels][chunks][32 lanes]
  Global<const uint32_t> scales;  // [panels][chunks · kChunkBlocks][8][kScaleWords]
  int panels = 0;
  int blocks = 0;  // of 32 inputs
};

struct ActivationArgs {
  Global<const uint32_t> codes;  // Int8Activations
  Global<const float> scales;
  Global<const float> scaled_sums;
  int row_tiles = 0;
};

// The outputs of one launch: matrices of one format that share their input, side by side.
inline constexpr int kMaxQuantizedOutputs = 4;

struct QuantizedOutput {
  int first_block = 0;  // of the grid
  QuantizedMatrix weight;
  GemmResult result;
};
struct QuantizedGemmArgs {
  ActivationArgs x;
  int num_outputs = 0;
  QuantizedOutput outputs[kMaxQuantizedOutputs];  // first_block ascends
};

// The output that this block works for.
__device__ inline QuantizedOutput OutputOfBlock(const QuantizedGemmArgs& args) {
  QuantizedOutput output = args.outputs[0];
#pragma unroll
  for (int i = 1; i < kMaxQuantizedOutputs; ++i) {
    if (i < args.num_outputs && static_cast<int>(blockIdx.x) >= args.outputs[i].first_block) {
      output = args.outputs[i];
    }
  }
  return output;
}

// kChunkBlocks: blocks of a chunk, the 16 bytes that a lane loads at once.
struct FormatQ8_0 {
  static constexpr int kChunkBlocks = 1, kScaleWords = 1;
  static constexpr bool kHasMin = false;
  __device__ static void Unpack(const uint4& chunk, int, uint32_t (&a)[4]) {
    a[0] = chunk.x;
    a[1] = chunk.y;
    a[2] = chunk.z;
    a[3] = chunk.w;
  }
};

struct FormatQ4_1 {
  static constexpr int kChunkBlocks = 2, kScaleWords = 2;
  static constexpr bool kHasMin = true;
  __device__ static void Unpack(const uint4& chunk, int block, uint32_t (&a)[4]) {
    const uint32_t low = block == 0 ? chunk.x : chunk.z;   // output g
    const uint32_t high = block == 0 ? chunk.y : chunk.w;  // output g + 8
    a[0] = low & 0x0f0f0f0fu;
    a[1] = high & 0x0f0f0f0fu;
    a[2] = (low >> 4) & 0x0f0f0f0fu;
    a[3] = (high >> 4) & 0x0f0f0f0fu;
  }
};

struct FormatQ4_0 {
  static constexpr int kChunkBlocks = 2, kScaleWords = 1;
  static constexpr bool kHasMin = false;
  __device__ static void Unpack(const uint4& chunk, int block, uint32_t (&a)[4]) {
    FormatQ4_1::Unpack(chunk, block, a);
#pragma unroll
    for (uint32_t& codes : a) codes = ((codes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;  // - 8
  }
};

// The scales (and minima) of outputs g and g + 8 for one block: as they lie in memory, and as
// numbers. What is loaded early is turned into numbers late, lest the load be waited for.
struct ScaleWords {
  uint32_t scale = 0;
  uint32_t min = 0;
};
struct LaneScales {
  float scale[2];
  float min[2];
};

template <typename Format>
__device__ ScaleWords LoadScales(const QuantizedMatrix& w, int panel, int block, int g) {
  constexpr int kChunkBlocks = Format::kChunkBlocks;
  const int padded = (w.blocks + kChunkBlocks - 1) / kChunkBlocks * kChunkBlocks;
  const int64_t at = (int64_t{panel} * padded + block) * 8 + g;
  if constexpr (Format::kHasMin) {
    const uint2 words = Cast<const uint2>(w.scales)[at];
    return {.scale = words.x, .min = words.y};
  } else {
    const uint32_t word = w.scales[at];
    return {.scale = word};
  }
}

__device__ inline float FloatOfHalf(uint32_t word, int index) {
  const auto bits = static_cast<uint16_t>(word >> (16 * index));
#ifdef LYNX_SIMT
  return HalfToFloat(bits);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#endif
}

__device__ inline LaneScales ToScales(const ScaleWords& words) {
  return {.scale = {FloatOfHalf(words.scale, 0), FloatOfHalf(words.scale, 1)},
          .min = {FloatOfHalf(words.min, 0), FloatOfHalf(words.min, 1)}};
}

// The chunk of a panel that block `chunk · kChunkBlocks` begins.
template <typename Format>
__device__ uint4 LoadChunk(const QuantizedMatrix& w, int panel, int chunk, int lane) {
  const int chunks = (w.blocks + Format::kChunkBlocks - 1) / Format::kChunkBlocks;
  const uint4 codes = w.codes[(int64_t{panel} * chunks + chunk) * kWarpSize + lane];
  return codes;
}

// Integer dots as float32, exact: the sums start at the bits of 1.5 · 2^23, which as a float is
// then that number plus the dot (|dot| <= 32 · 128 · 127 < 2^22).
__device__ inline void BlockDots(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&dots)[4]) {
  constexpr int kBits = 0x4b400000;
  int sums[4] = {kBits, kBits, kBits, kBits};
  MmaInt8(sums, a, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) dots[i] = std::bit_cast<float>(sums[i]) - 12582912.0f;
}

}  // namespace lynx::cuda
