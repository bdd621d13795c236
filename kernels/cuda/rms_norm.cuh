// SPDX-License-Identifier: Apache-2.0
// y = x / rms(x) · weight, the bits of kernels/cpu/rms_norm.h: Σ x² in 16 virtual lanes, element i
// in lane i % 16, joined by a fixed tree.
//
// A block takes a few vectors (one when they are long) to shared memory; 16 threads of each vector
// run its lanes' chains there; then all threads scale. Moves 8 bytes per element, and the weight
// once for each block (from the L2 cache).
#pragma once

#include "kernels/common/math_ref.h"
#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

struct RmsNormArgs {
  Global<const float> x;       // [n, dim]
  Global<const float> weight;  // [dim]
  float eps = 0;
  int64_t n = 0;
  int dim = 0;
  int vectors = 0;  // of a block
  int stride = 0;   // floats between the vectors in shared memory
  Global<float> y;  // [n, dim], may be x
};

inline constexpr int kRmsNormThreads = 256;
inline constexpr int kRmsNormMaxVectors = kRmsNormThreads / kLanes;

// 1 / rms of the block's vector number threadIdx.x / 16, in all 16 threads of it.
__device__ inline float InverseRms(const RmsNormArgs& args, Shared<const float> x, int count) {
  const int vector = static_cast<int>(threadIdx.x) / kLanes;
  float sum = 0;
  if (vector < count) {
#pragma unroll 8
    for (int i = static_cast<int>(threadIdx.x) % kLanes; i < args.dim; i += kLanes) {
      const float v = x[vector * args.stride + i];
      sum = fmaf(v, v, sum);
    }
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kFullMask, sum, distance);
  }
  return 1.0f / sqrtf(sum / static_cast<float>(args.dim) + args.eps);
}

// budget: RmsNormKernel registers 40 shared 65664 threads 256
__global__ void __launch_bounds__(kRmsNormThreads) RmsNormKernel(RmsNormArgs args) {
  LYNX_DYNAMIC_SHARED(dynamic);  // float [vectors][stride]
  LYNX_SHARED(float, scales, kRmsNormMaxVectors);
  const Shared<float> x = Cast<float>(dynamic);
  const int64_t first = int64_t{blockIdx.x} * args.vectors;
  const int64_t left = args.n - first;
  const int count = left < args.vectors ? static_cast<int>(left) : args.vectors;
  const int thread = static_cast<int>(threadIdx.x);

  const Global<const float> from = args.x + first * args.dim;
  const Global<float> to = args.y + first * args.dim;
  for (int v = 0; v < count; ++v) {
#pragma unroll 4
    for (int i = thread; i < args.dim; i += kRmsNormThreads) {
      x[v * args.stride + i] = from[int64_t{v} * args.dim + i];
    }
  }
  __syncthreads();
  const float scale = InverseRms(args, x, count);
  if (thread % kLanes == 0) scales[thread / kLanes] = scale;
  __syncthreads();
  for (int v = 0; v < count; ++v) {
#pragma unroll 4
    for (int i = thread; i < args.dim; i += kRmsNormThreads) {
      const float value = x[v * args.stride + i];
      const float vector_scale = scales[v];
      const float weight = args.weight[i];
      to[int64_t{v} * args.dim + i] = value * vector_scale * weight;
    }
  }
}

}  // namespace lynx::cuda
