// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding in place, the bits of kernels/cpu/rope.h. One thread a pair (i, i +
// head_dim / 2). Moves 8 bytes per element; the table's row is read once for each head (from the L1
// cache).
#pragma once

#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct RopeArgs {
  Global<float> x;  // [rows, num_heads, head_dim]
  int64_t num_pairs = 0;
  int num_heads = 0;
  int half_dim = 0;                 // head_dim / 2
  Global<const int32_t> positions;  // [rows]
  Global<const float> cos;          // [max_position, half_dim]
  Global<const float> sin;          // same
};

inline constexpr int kRopeThreads = 256;

// budget: RopeKernel registers 40 shared 0 threads 256
__global__ void __launch_bounds__(kRopeThreads) RopeKernel(RopeArgs args) {
  const int64_t index = int64_t{blockIdx.x} * kRopeThreads + threadIdx.x;
  if (index >= args.num_pairs) return;
  const int64_t head = index / args.half_dim;
  const int i = static_cast<int>(index - head * args.half_dim);
  const int32_t position = args.positions[head / args.num_heads];
  const int64_t entry = int64_t{position} * args.half_dim + i;
  const float cos = args.cos[entry], sin = args.sin[entry];
  const Global<float> at = args.x + head * 2 * args.half_dim + i;
  const float a = at[0], b = at[args.half_dim];
  at[0] = fmaf(-b, sin, a * cos);
  at[args.half_dim] = fmaf(a, sin, b * cos);
}

}  // namespace lynx::cuda
