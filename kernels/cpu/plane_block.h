// SPDX-License-Identifier: Apache-2.0
// The plane format, one block (64 tokens) at a time. plane_encode.cc and plane_decode.cc walk a
// page with these; plane_ref.cc is their meaning, plane_simd.cc gives the same bits faster.
//
// Order of elements: a tile is a sequence of 16-lane vectors, vector v = elements 16v .. 16v + 15.
// Sixteen vectors make a chunk, two chunks a pair. Rows of a block (all little-endian dwords, one
// per lane):
//   plane 0   1 row per chunk:  bits 2f, 2f+1 = code bits 7, 6 of vector f of the chunk
//   plane 1   1 row per pair:   bit 2f = code bit 5 of vector f of the first chunk, bit 2f+1 = of
//   plane 2                     the second; plane 2 has code bit 4
//   plane 3   2 rows per chunk: nibble i of row r = code bits 3..0 of vector 2i + r
// Parameters lo, step are per channel: lanes share one for keys (a vector lies in one channel),
// and each has its own for values (a vector is 16 channels of one token).
//
// None of this depends on the FTZ and DAZ modes: no operand or result is subnormal where it counts.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lynx/types.h"

namespace lynx::cpu {

// BF16 patterns in the order of their values; -0 comes just before +0, Inf and NaN at the ends.
inline int16_t OrderedKey(Bf16 v) {
  const auto bits = static_cast<int16_t>(v.bits);
  return static_cast<int16_t>(bits ^ ((bits >> 15) & 0x7fff));
}
inline Bf16 FromOrderedKey(int32_t key) {
  return {static_cast<uint16_t>(key ^ ((static_cast<int16_t>(key) >> 15) & 0x7fff))};
}
// The smallest BF16 value not below f, as a key. f is finite and not subnormal.
inline int32_t CeilKey(float f) {
  const auto bits = std::bit_cast<int32_t>(f);
  const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
  return (key + (bits < 0 ? 0 : 0xffff)) >> 16;
}
// v as a float to be compared with cell bounds: -0 and the negative subnormals lie below 0.
inline float BoundOperand(Bf16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  const bool tiny_negative = bits >= 0x80000000u && bits < 0x80800000u;
  return std::bit_cast<float>(tiny_negative ? 0x80800000u : bits);
}
// Bound q of a group: cell q is [CellBound(q), CellBound(q + 1)). One rounding.
inline float CellBound(float q, float step, float lo) { return std::fma(q, step, lo); }

struct GroupCodesParams {
  int head_dim = 0;
  const float* page_lo = nullptr;    // [head_dim]
  const float* unit = nullptr;       // [head_dim], page range / 256
  const int16_t* min_key = nullptr;  // [head_dim], of the group's values
  const int16_t* max_key = nullptr;  // [head_dim]
  uint8_t* low = nullptr;            // [head_dim] out
  uint8_t* high = nullptr;           // [head_dim] out
};

struct EncodeBlockParams {
  KvKind kind = KvKind::kKey;
  int head_dim = 0;
  const Bf16* tile = nullptr;   // all values inside the groups' bounds
  const float* lo = nullptr;    // [head_dim]
  const float* step = nullptr;  // [head_dim]; 0: a constant group
  int live_begin = 0;           // tokens in [live_begin, live_end) get exact bits
  int live_end = 0;
  std::byte* rows[4] = {};      // planes 0 .. 3
  std::byte* stream = nullptr;  // exact bits, or null
};

struct DecodeBlockParams {
  KvKind kind = KvKind::kKey;
  int head_dim = 0;
  const float* lo = nullptr;    // [head_dim]
  const float* step = nullptr;  // [head_dim]
  int live_begin = 0;
  int live_end = 0;
  const std::byte* rows[4] = {};      // null from the first absent plane on
  const std::byte* stream = nullptr;  // exact bits, readable for 8 bytes past its end, or null
  size_t stream_bytes = 0;
  Bf16* tile = nullptr;  // out, all of it
};

struct PlaneBlockKernels {
  // Smallest and largest key of each channel: min_key, max_key [head_dim].
  void (*key_range)(KvKind kind, int head_dim, const Bf16* tile, int16_t* min_key,
                    int16_t* max_key);
  void (*group_codes)(const GroupCodesParams& params);
  // lo, step [head_dim] of a group from its two codes.
  void (*group_bounds)(int head_dim, const float* page_lo, const float* unit, const uint8_t* low,
                       const uint8_t* high, float* lo, float* step);
  // Returns the bytes of the stream: a multiple of 4. May write up to 8 more.
  size_t (*encode)(const EncodeBlockParams& params);
  // False when the stream does not have the bits that the codes ask for.
  bool (*decode)(const DecodeBlockParams& params);
};

extern const PlaneBlockKernels kPlaneBlockRef;

}  // namespace lynx::cpu
