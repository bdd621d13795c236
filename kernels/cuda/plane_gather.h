// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "lynx/plane_format.h"

namespace lynx::cuda {

inline constexpr size_t kGatheredAlignment = 16;
constexpr size_t GatheredBytes(size_t plane_bytes) {
  return (plane_bytes + kGatheredAlignment - 1) / kGatheredAlignment * kGatheredAlignment;
}

// Moves the planes of a batch of pages, which lie at fixed strides, behind each other: page by
// page, plane by plane, each filled up to GatheredBytes. Device pointers; `to` may be pinned host
// memory.
struct PlaneGather {
  const std::byte* from = nullptr;  // plane p of page i: i * page_stride + offset[p]
  size_t page_stride = 0;           // multiples of 16, both
  std::array<size_t, kNumPlanes> offset = {};
  const uint32_t* plane_bytes = nullptr;  // [num_pages][kNumPlanes]
  int num_pages = 0;
  std::byte* to = nullptr;  // 16-byte aligned
};
void GatherPlanes(cudaStream_t stream, const PlaneGather& gather);

}  // namespace lynx::cuda
