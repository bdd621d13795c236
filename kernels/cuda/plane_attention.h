// SPDX-License-Identifier: Apache-2.0
// Attention straight from a prefix of the planes (docs/plane_format.md): what drafts are computed
// with before more planes have landed, and sequences whose truth is the 8-bit level. Codes become
// BF16 on their way into shared memory, exactly as PlaneDecode would have written them, so the
// result equals Attention over decoded tiles bit for bit while a fraction of the bytes is read.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention.h"
#include "lynx/plane_format.h"

namespace lynx::cuda {

// A page of one layer, kind and KV head. The bytes passed the checks of a decoder once: pages are
// not checked here again, except that nothing is read past plane 0 for raw groups.
struct PlanePage {
  const std::byte* planes[kExactPlane] = {};  // device, 16-byte aligned
  uint32_t plane0_bytes = 0;
  int16_t num_planes = 0;  // 1 .. 4: codes of 2, 3, 4, 8 bits
  int16_t num_tokens = 0;
  int16_t num_protected_head = 0;
  int16_t num_protected_tail = 0;
};

// Which blocks of a group's sequence are read from planes; the others come from the pool.
struct PlaneBlocks {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t first_page = 0;  // holds blocks begin .. begin + 3; the next page the next four …
};

struct PlaneAttentionCall {
  AttentionCall attention;
  const PlaneBlocks* blocks = nullptr;  // device, [groups of the plan]
  const PlanePage* pages = nullptr;     // device, [pages][2 (key, value)][num_kv_heads], this layer
};

constexpr bool IsPlaneAttentionHeadDim(int d) { return d == 64 || d == 96 || d == 128 || d == 256; }

// Whether the device has the shared memory for this head_dim (attention.h; 256 wants 117 KiB).
bool HasPlaneAttention(int head_dim);

// head_dim is one of IsPlaneAttentionHeadDim; the plan has no wide tiles (AttentionPlanOptions).
void PlaneAttention(cudaStream_t stream, const PlaneAttentionCall& call);

}  // namespace lynx::cuda
