// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "lynx/kv_layout.h"

namespace lynx::cuda {

// All rows of a batch. Device pointers.
struct KvRows {
  const float* k = nullptr;  // [rows, num_kv_heads, head_dim], after RoPE
  const float* v = nullptr;  // same
  // [rows]: block id · 64 + position % 64, where the row's K and V belong. All different.
  const int32_t* slots = nullptr;
  int rows = 0;
  int layer = 0;
  KvPoolView pool;  // BF16
};

void KvWrite(cudaStream_t stream, const KvRows& params);

}  // namespace lynx::cuda
