// SPDX-License-Identifier: Apache-2.0
// Pages of KV into the planes of docs/plane_format.md, the bytes of kernels/cpu/plane_encode.cc.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lynx/plane_format.h"

namespace lynx::cuda {

// All pointers are device pointers, aligned to 16 bytes.
struct PlaneEncodePage {
  PageShape shape;
  const Bf16* tiles[kPageBlocks] = {};
  // planes[p] has room for PlaneLayout(shape).max_plane_bytes(p). A null exact plane is left out.
  std::byte* planes[kNumPlanes] = {};
};

// Encodes a batch of pages of any kinds and shapes, one CTA each. pages: device, [num_pages];
// plane_bytes: device, [num_pages][kNumPlanes], the bytes used. A page's bytes do not depend on the
// other pages.
void PlaneEncode(cudaStream_t stream, const PlaneEncodePage* pages, int num_pages,
                 uint32_t* plane_bytes);

}  // namespace lynx::cuda
