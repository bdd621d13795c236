// SPDX-License-Identifier: Apache-2.0
// Causal attention of a ragged batch over BF16 tiles, on the device. The order of the CPU's
// (kernels/cpu/attention.h), but each product's sum runs in the tensor core's order and the sum of
// a block's probabilities is the product with a vector of ones.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention_plan.h"

namespace lynx::cuda {

// Device pointers.
struct AttentionCall {
  const float* q = nullptr;  // [rows, num_heads, head_dim], after RoPE
  float* out = nullptr;      // [rows, num_heads, head_dim]
  int num_heads = 0;
  int layer = 0;
  float scale = 0;
  int sliding_window = 0;  // 0 = none; not above the plan's
  KvPoolView pool;         // BF16
  AttentionWork work;
  float* scratch = nullptr;  // [AttentionScratchBytes], 16-byte aligned
};

constexpr bool IsAttentionHeadDim(int d) {
  return d == 16 || d == 32 || d == 64 || d == 96 || d == 128 || d == 256;
}

// Whether the device has the shared memory for wide tiles of this head_dim. GPUs of 99 KiB a block
// (sm_86, sm_89, sm_120) do not for 256: their plans have narrow tiles only (AttentionPlanOptions),
// which give the same bits.
bool HasWideAttention(int head_dim);

// head_dim is one of IsAttentionHeadDim.
void Attention(cudaStream_t stream, const AttentionCall& call);

}  // namespace lynx::cuda
