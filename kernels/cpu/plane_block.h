// SPDX-License-Identifier: Apache-2.0
// The plane format, one block (64 tokens) at a time. plane_encode.cc and plane_decode.cc walk a
// page with these; plane_ref.cc is their meaning, plane_simd.cc gives the same bits faster. The
// numbers are those of kernels/common/plane_math.h.
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
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/plane_math.h"
#include "lynx/plane_format.h"
#include "lynx/types.h"

namespace lynx::cpu {

struct PageRangesParams {
  int head_dim = 0;
  int num_blocks = 0;
  const int16_t (*min_key)[kMaxHeadDim] = nullptr;  // [num_blocks], of the groups' values
  const int16_t (*max_key)[kMaxHeadDim] = nullptr;  // [num_blocks]
  uint16_t* lo = nullptr;                           // [head_dim] out, FP16
  uint16_t* range = nullptr;                        // [head_dim] out, FP16
  float* page_lo = nullptr;                         // [head_dim] out: lo
  float* unit = nullptr;                            // [head_dim] out: range / 256
};

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
  std::byte* stream = nullptr;  // exact bits: room for both streams; or null
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
  StreamWords stream_words = {};
  Bf16* tile = nullptr;  // out, all of it
};

struct PlaneBlockKernels {
  // Smallest and largest key of each channel: min_key, max_key [head_dim].
  void (*key_range)(KvKind kind, int head_dim, const Bf16* tile, int16_t* min_key,
                    int16_t* max_key);
  // Page metadata of the groups that are not raw.
  void (*page_ranges)(const PageRangesParams& params);
  void (*group_codes)(const GroupCodesParams& params);
  // lo, step [head_dim] of a group from its two codes.
  void (*group_bounds)(int head_dim, const float* page_lo, const float* unit, const uint8_t* low,
                       const uint8_t* high, float* lo, float* step);
  // Returns the sizes of the streams, the extra one behind the other. May write up to 8 bytes more.
  StreamWords (*encode)(const EncodeBlockParams& params);
  // False when the streams do not have the bits that the codes ask for.
  bool (*decode)(const DecodeBlockParams& params);
};

extern const PlaneBlockKernels kPlaneBlockRef;

}  // namespace lynx::cpu
