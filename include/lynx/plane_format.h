// SPDX-License-Identifier: Apache-2.0
// Sizes and kernel parameters of the plane format. Bytes: docs/plane_format.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "lynx/codec.h"

namespace lynx {

// Of the bytes; peers compare it.
inline constexpr int kPlaneFormatVersion = 2;

inline constexpr int kNumPlanes = 5;  // 2 | 1 | 1 | 4 | exact
inline constexpr int kExactPlane = 4;
constexpr int PlaneBits(int plane) { return plane == 0 ? 2 : plane == 3 ? 4 : 1; }
inline constexpr int kMaxHeadDim = 256;

// A group with these two codes (low above high) is sent raw.
inline constexpr uint8_t kRawLowCode = 255;
inline constexpr uint8_t kRawHighCode = 0;

constexpr bool IsPlaneShape(const PageShape& s) {
  return s.head_dim >= 16 && s.head_dim <= kMaxHeadDim && s.head_dim % 16 == 0 &&
         s.num_tokens >= 1 && s.num_tokens <= kPageTokens && s.num_protected_head >= 0 &&
         s.num_protected_tail >= 0 && s.num_protected_head + s.num_protected_tail <= s.num_tokens;
}

// Where the parts of a page's planes lie. A block is *live* when it holds a token that is not
// protected; only live blocks have groups and codes.
struct PlaneLayout {
  int head_dim = 0;
  int live_begin = 0;  // tokens of the page in [live_begin, live_end) are coded
  int live_end = 0;
  int first_block = 0;  // the live blocks
  int num_blocks = 0;
  int num_protected = 0;  // tokens

  constexpr explicit PlaneLayout(const PageShape& s)
      : head_dim(s.head_dim),
        live_begin(s.num_protected_head),
        live_end(s.num_tokens - s.num_protected_tail),
        num_protected(s.num_protected_head + s.num_protected_tail) {
    if (live_begin == live_end) return;
    first_block = live_begin / kBlockSize;
    num_blocks = (live_end + kBlockSize - 1) / kBlockSize - first_block;
  }

  // Live tokens of live block i, counted from the block's own first token.
  constexpr int block_live_begin(int i) const {
    return std::max(0, live_begin - (first_block + i) * kBlockSize);
  }
  constexpr int block_live_end(int i) const {
    // By value: devices cannot refer to a constant of the host.
    return std::min(int{kBlockSize}, live_end - (first_block + i) * kBlockSize);
  }

  // Plane 0: page metadata, group codes, code rows, protected tokens, raw groups.
  constexpr size_t group_codes_offset() const { return num_blocks == 0 ? 0 : size_t(head_dim) * 4; }
  constexpr size_t codes_offset() const {
    return group_codes_offset() + size_t(num_blocks) * head_dim * 2;
  }
  constexpr size_t protected_offset() const {
    return codes_offset() + size_t(num_blocks) * block_code_bytes(0);
  }
  constexpr size_t raw_offset() const {
    return protected_offset() + size_t(num_protected) * head_dim * sizeof(Bf16);
  }

  // Planes 0 .. 3: the code rows of one live block.
  constexpr size_t block_code_bytes(int plane) const {
    return size_t(kBlockSize) * head_dim * PlaneBits(plane) / 8;
  }
  // Planes 1 .. 3 are nothing but code rows.
  constexpr size_t code_plane_bytes(int plane) const {
    return num_blocks * block_code_bytes(plane);
  }

  // Exact plane: StreamWords per live block; each block's index stream and extra stream; eight
  // bytes of padding.
  constexpr size_t stream_offset() const { return size_t(num_blocks) * sizeof(uint32_t); }
  constexpr size_t max_stream_bytes() const { return size_t(kBlockSize) * head_dim * sizeof(Bf16); }
  static constexpr size_t kExactPadding = sizeof(uint64_t);

  constexpr size_t max_plane_bytes(int plane) const {
    if (plane == 0) {
      return raw_offset() + size_t(live_end - live_begin) * head_dim * sizeof(Bf16);
    }
    if (plane < kExactPlane) return code_plane_bytes(plane);
    if (num_blocks == 0) return 0;
    return stream_offset() + num_blocks * max_stream_bytes() + kExactPadding;
  }
};

// Room that an encoder may scribble on behind the bytes it reports, per plane.
inline constexpr size_t kPlaneSlack = 64;

// The lengths of a block's two streams in the exact plane, in words of four bytes.
struct StreamWords {
  uint32_t index = 0;
  uint32_t extra = 0;
  constexpr size_t bytes() const { return (size_t{index} + extra) * sizeof(uint32_t); }
  constexpr uint32_t packed() const { return index | extra << 16; }
  static constexpr StreamWords FromPacked(uint32_t packed) {
    return {packed & 0xffff, packed >> 16};
  }
};

struct PlaneEncodeParams {
  PageShape shape;
  PageTiles tiles;
  // planes[p] has room for max_plane_bytes(p) + kPlaneSlack; the kernel stores the bytes used in
  // plane_bytes[p]. A null exact plane is left out.
  std::array<std::byte*, kNumPlanes> planes = {};
  std::array<size_t, kNumPlanes>* plane_bytes = nullptr;
};

struct PlaneDecodeParams {
  PageShape shape;
  int num_planes = 0;  // 1 .. 5, a prefix
  std::array<const std::byte*, kNumPlanes> planes = {};
  std::array<size_t, kNumPlanes> plane_bytes = {};
  // The plane lies in the device's memory (lynx/device_chunks.h), aligned to 16 bytes.
  std::array<bool, kNumPlanes> on_device = {};
  MutablePageTiles tiles;
  // false: the bytes are not those of a page of this shape; its slots are 0 then.
  bool* ok = nullptr;
};

}  // namespace lynx
