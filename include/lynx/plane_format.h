// SPDX-License-Identifier: Apache-2.0
// Sizes and kernel parameters of the plane format. Bytes: docs/plane_format.md.
#pragma once

#include "lynx/codec.h"

namespace lynx {

inline constexpr int kNumPlanes = 5;  // 2 | 1 | 1 | 4 | exact

struct PlaneEncodeParams {
  PageShape shape;
  PageTiles tiles;
  // planes[p] has room for MaxPlaneBytes; the kernel stores the bytes used in plane_bytes[p].
  std::array<std::byte*, kNumPlanes> planes = {};
  std::array<size_t, kNumPlanes>* plane_bytes = nullptr;
};

struct PlaneDecodeParams {
  PageShape shape;
  int num_planes = 0;  // 1 .. 5, a prefix
  std::array<const std::byte*, kNumPlanes> planes = {};
  std::array<size_t, kNumPlanes> plane_bytes = {};
  MutablePageTiles tiles;
  bool* ok = nullptr;  // false: the bytes are not those of a page of this shape
};

}  // namespace lynx
