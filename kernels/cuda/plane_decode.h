// SPDX-License-Identifier: Apache-2.0
// A prefix of the planes of docs/plane_format.md back into pages of KV, the values of
// kernels/cpu/plane_decode.cc.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lynx/plane_format.h"

namespace lynx::cuda {

// All pointers are device pointers, aligned to 16 bytes.
struct PlaneDecodePage {
  PageShape shape;
  int num_planes = 0;  // 1 .. 5, a prefix
  const std::byte* planes[kNumPlanes] = {};
  uint32_t plane_bytes[kNumPlanes] = {};
  Bf16* tiles[kPageBlocks] = {};
};

// Decodes a batch of pages of any kinds and shapes, one CTA each, over what the tiles hold: later,
// with more planes, the same call refines them in place. Slots past num_tokens are left alone.
// pages: device, [num_pages]; ok: device, [num_pages], 1, or 0 where the bytes are not those of a
// page of this shape; its slots are 0 then. Nothing is read outside plane_bytes, whatever the
// bytes.
void PlaneDecode(cudaStream_t stream, const PlaneDecodePage* pages, int num_pages, uint8_t* ok);

}  // namespace lynx::cuda
