// SPDX-License-Identifier: Apache-2.0
// Activations on 8 bits, the bits of kernels/cpu/gemm_convert-inl.h, laid out as the tensor core
// takes them. Eight threads a block of 32 inputs, four blocks a warp. Reads 4 bytes per element and
// writes 1.25.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/quantize_rows.h"

namespace lynx::cuda {

struct QuantizeRowsArgs {
  Global<const float> x;  // [rows, k]
  int rows = 0;
  int64_t k = 0;  // whole blocks
  // Int8Activations
  Global<uint32_t> codes;
  Global<float> scales;
  Global<float> scaled_sums;
};

inline constexpr int kQuantizeRowsWarps = 8;
inline constexpr int kBlocksPerWarp = 4;

// The largest of eight neighbouring threads, and their sum.
__device__ inline uint32_t MaxOfEight(uint32_t v) {
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    const uint32_t other = __shfl_xor_sync(kFullMask, v, distance);
    v = v < other ? other : v;
  }
  return v;
}
__device__ inline int SumOfEight(int v) {
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    v += __shfl_xor_sync(kFullMask, v, distance);
  }
  return v;
}

struct BlockScale {
  float scale = 0;
  float inverse = 0;
};

// A block whose magnitudes are all below 2^-100 is zero (its inverse would overflow); one with Inf
// or NaN gets a NaN scale, so that the outputs it reaches are NaN.
__device__ inline BlockScale ScaleOf(uint32_t max_bits) {
  constexpr uint32_t kSmallest = 27u << 23;  // 2^-100
  constexpr uint32_t kInfinity = 255u << 23;
  if (max_bits >= kInfinity) return {.scale = std::bit_cast<float>(0x7fc00000u)};
  if (max_bits < kSmallest) return {};
  const float max = std::bit_cast<float>(max_bits);
  return {.scale = max / 127.0f, .inverse = 127.0f / max};
}

// budget: QuantizeRowsKernel registers 40 shared 0 threads 256
__global__ void __launch_bounds__(kQuantizeRowsWarps* kWarpSize)
    QuantizeRowsKernel(QuantizeRowsArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int j = lane % 8;
  const int row = static_cast<int>(blockIdx.x);  // up to whole row tiles
  const int64_t blocks = args.k / kQuantBlock;
  const int64_t block =
      (int64_t{blockIdx.y} * kQuantizeRowsWarps + warp) * kBlocksPerWarp + lane / 8;

  float4 x = {};
  if (row < args.rows && block < blocks) {
    x = Cast<const float4>(args.x)[(row * args.k + block * kQuantBlock) / 4 + j];
  }
  const float in[4] = {x.x, x.y, x.z, x.w};
  uint32_t max_bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]) & 0x7fffffffu;
    max_bits = max_bits < bits ? bits : max_bits;
  }
  const BlockScale s = ScaleOf(MaxOfEight(max_bits));
  uint32_t word = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Adding 1.5 · 2^23 leaves the rounded integer in the low bits.
    const float shifted = in[i] * s.inverse + 12582912.0f;
    const int code = s.inverse > 0 ? std::bit_cast<int>(shifted) - 0x4b400000 : 0;
    word |= (static_cast<uint32_t>(code) & 255u) << (8 * i);
    sum += code;
  }
  sum = SumOfEight(sum);
  if (block >= blocks) return;
  const int64_t index = row / kRowTile * blocks + block;
  const int r = row % kRowTile;
  args.codes[(index * kWarpSize + r * 4 + j % 4) * 2 + j / 4] = word;
  if (j != 0) return;
  args.scales[index * kRowTile + r] = s.scale;
  args.scaled_sums[index * kRowTile + r] = s.scale * static_cast<float>(sum);
}

}  // namespace lynx::cuda
