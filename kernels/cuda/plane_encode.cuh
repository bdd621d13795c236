// SPDX-License-Identifier: Apache-2.0
// A page into planes (docs/plane_format.md): the bytes of kernels/cpu/plane_encode.cc.
//
// A CTA has a page: the key range of every group; page metadata; then block by block group codes,
// code rows, exact bits and raw groups (plane_block.cuh says who does what). The index bits of a
// round are put together in shared memory and stored as whole words; the extra bits of the whole
// block follow at its end.
//
// Moves 2 bytes in and, on cache-like data, 1.4 out per element. The tiles are read twice, the
// second time through the L2 cache: no tile is kept in shared memory, so that a page of 256 x 256
// runs where one of 16 x 16 does, several to a multiprocessor.
#pragma once

#include <algorithm>

#include "kernels/cuda/plane_block.cuh"
#include "kernels/cuda/plane_encode.h"

namespace lynx::cuda {

struct PlaneEncodeArgs {
  Global<const PlaneEncodePage> pages;  // [gridDim.x]
  Global<uint32_t> plane_bytes;         // [gridDim.x][kNumPlanes]
};

// The words of a round's index bits: at most 15 bits an element, and a carried word.
inline constexpr int kRoundStreamWords = kRoundElements * 15 / 32 + 1;
// The words of a block's extra bits: at most one bit an element.
inline constexpr int kExtraWords = kBlockSize * kMaxHeadDim / 32;

struct PlaneEncodeShared {
  Shared<int> min_key;      // [kPageBlocks][kMaxHeadDim]
  Shared<int> max_key;      // same
  GroupParams group;        // of the block at hand
  Shared<float> scale;      // [kParamSlots] 1 / step, 0 for a constant group
  Shared<uint8_t> codes;    // [kRoundCodeBytes]
  Shared<uint32_t> stream;  // [kRoundStreamWords]
  Shared<uint32_t> extra;   // [kExtraWords]
  Shared<int> warp_sums;    // [kPlaneWarps]
};

struct KeyRange {
  int least = INT16_MAX;
  int greatest = INT16_MIN;
  __device__ void Add(uint32_t bits) {
    const int key = OrderedKey(Bf16{static_cast<uint16_t>(bits)});
    Include({key, key});
  }
  __device__ void Include(const KeyRange& other) {
    least = std::min(least, other.least);
    greatest = std::max(greatest, other.greatest);
  }
};

// Key tiles: four neighbouring threads have the vectors of a channel.
__device__ inline void FindRangesOfKeys(const PlaneTile& tile, Global<const Bf16> elements,
                                        Shared<int> min_key, Shared<int> max_key) {
  constexpr int kGroupVectors = kBlockSize / kVectorElements;
  // Whole warps: the number of vectors is a multiple of 64.
  for (int v = static_cast<int>(threadIdx.x); v < tile.num_vectors(); v += kPlaneThreads) {
    const VectorPlace place(tile, v);
    const VectorWords values = LoadVector(elements, v);
    KeyRange range;
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      if (tile.live(place.token + i)) range.Add(values.bits(i));
    }
    for (int distance = 1; distance < kGroupVectors; distance *= 2) {
      range.Include({__shfl_xor_sync(kFullMask, range.least, distance),
                     __shfl_xor_sync(kFullMask, range.greatest, distance)});
    }
    if (v % kGroupVectors != 0) continue;
    min_key[place.channel] = range.least;
    max_key[place.channel] = range.greatest;
  }
}

// Value tiles: a thread has two neighbouring channels of every n-th token.
__device__ inline void FindRangesOfValues(const PlaneTile& tile, Global<const Bf16> elements,
                                          Shared<int> min_key, Shared<int> max_key) {
  const int num_pairs = tile.head_dim / 2;
  const int token_step = kPlaneThreads / num_pairs;
  const int pair = static_cast<int>(threadIdx.x) % num_pairs;
  const int first = static_cast<int>(threadIdx.x) / num_pairs;
  if (first >= token_step) return;
  const Global<const uint32_t> pairs = Cast<const uint32_t>(elements);
  KeyRange low, high;
  for (int t = tile.live_begin + first; t < tile.live_end; t += token_step) {
    const uint32_t values = pairs[t * num_pairs + pair];
    low.Add(values & 0xffff);
    high.Add(values >> 16);
  }
  atomicMin(min_key + pair * 2, low.least);
  atomicMax(max_key + pair * 2, low.greatest);
  atomicMin(min_key + (pair * 2 + 1), high.least);
  atomicMax(max_key + (pair * 2 + 1), high.greatest);
}

// Page metadata of a channel, as floats.
struct ChannelScale {
  float page_lo = 0;
  float unit = 0;
};
__device__ inline ChannelScale PutChannelRange(const PlaneLayout& layout, int channel,
                                               const PlaneEncodeShared& s,
                                               Global<std::byte> plane) {
  KeyRange page;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const int least = s.min_key[i * kMaxHeadDim + channel];
    const int greatest = s.max_key[i * kMaxHeadDim + channel];
    if (!IsRawGroup(least, greatest)) page.Include({least, greatest});
  }
  const bool empty = page.least > page.greatest;
  const ChannelRange r = empty ? ChannelRange{} : CoverKeys(page.least, page.greatest);
  const Global<uint16_t> out = Cast<uint16_t>(plane);
  out[channel] = r.lo;
  out[layout.head_dim + channel] = r.range;
  return {HalfToFloat(r.lo), GroupUnit(r.range)};
}

// Group metadata of the thread's channel (if it has one); the number of raw groups.
__device__ inline int PutGroupCodes(const PlaneLayout& layout, int block, const ChannelScale& page,
                                    const PlaneEncodeShared& s, Global<std::byte> plane) {
  const int channel = static_cast<int>(threadIdx.x);
  const bool has_channel = channel < layout.head_dim;
  bool raw = false;
  if (has_channel) {
    const int least = s.min_key[block * kMaxHeadDim + channel];
    const int greatest = s.max_key[block * kMaxHeadDim + channel];
    raw = IsRawGroup(least, greatest);
    GroupCodes codes = {kRawLowCode, kRawHighCode};
    if (!raw) codes = CodesOfGroup(least, greatest, page.page_lo, page.unit);
    const float step = raw ? 0.0f : GroupStep(codes.low, codes.high, page.unit);
    s.group.lo[ParamSlot(channel)] = raw ? 0.0f : GroupLow(codes.low, page.unit, page.page_lo);
    s.group.step[ParamSlot(channel)] = step;
    s.scale[ParamSlot(channel)] = step == 0 ? 0.0f : 1.0f / step;
    const Global<uint8_t> out =
        Cast<uint8_t>(plane + layout.group_codes_offset() + block * layout.head_dim * 2);
    out[channel] = static_cast<uint8_t>(codes.low);
    out[layout.head_dim + channel] = static_cast<uint8_t>(codes.high);
  }
  const PrefixSum rank = SumOverThreads(raw, s.warp_sums);
  if (has_channel) s.group.raw_rank[channel] = raw ? rank.before : -1;
  __syncthreads();
  return rank.total;
}

// The thread's exact bits of a round: for each element of its vector the index bits and their
// number; and its extra bits.
struct VectorIndices {
  uint32_t index_and_bits[kVectorElements];  // index bits | number << 16
  int num_bits;
  uint32_t extra;
  int num_extra;
};

// A vector whose slots that are not live repeat the group's first live token.
__device__ inline VectorWords LoadLiveVector(const PlaneTile& tile, const VectorPlace& place,
                                             int vector, Global<const Bf16> elements) {
  if (place.AllLive(tile)) return LoadVector(elements, vector);
  const int first = tile.Index(place.channel, tile.live_begin);
  if (tile.kind == KvKind::kValue) return LoadVector(elements, first / kVectorElements);
  VectorWords values = LoadVector(elements, vector);
  const Bf16 repeated = elements[first];
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    if (!tile.live(place.token + i)) values.Replace(i, repeated.bits);
  }
  return values;
}

// By vector: codes into shared memory. Slots that are not live and raw groups, whose cells hold one
// value, have no exact bits.
__device__ inline VectorIndices CodeVector(const PlaneTile& tile, Global<const Bf16> elements,
                                           int vector, const PlaneEncodeShared& s) {
  VectorIndices result = {};
  const VectorPlace place(tile, vector);
  const VectorWords values = LoadLiveVector(tile, place, vector, elements);
  uint32_t codes[kVectorElements / 4] = {};
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    const int slot = ParamSlot(place.channel) + i * place.channel_step;
    const float lo = s.group.lo[slot];
    const float step = s.group.step[slot];
    const float scale = s.scale[slot];
    const Bf16 value{static_cast<uint16_t>(values.bits(i))};
    const int q = CellOf(BoundOperand(value), step, scale, lo);
    codes[i / 4] |= static_cast<uint32_t>(q) << i % 4 * 8;
    const Cell cell = CellValues(q, step, lo);
    const int bits = tile.live(place.token + i * place.token_step) ? cell.index_bits() : 0;
    if (bits == 0) continue;
    const auto index = static_cast<uint32_t>(OrderedKey(value) - cell.first);
    const IndexCode code = CodeOfIndex(index, cell.num_short());
    result.index_and_bits[i] = code.bits | static_cast<uint32_t>(bits) << 16;
    result.num_bits += bits;
    result.extra |= code.extra << result.num_extra;
    result.num_extra += code.has_extra;
  }
  CodesOfVector(s.codes, vector)[0] = uint4{codes[0], codes[1], codes[2], codes[3]};
  return result;
}

// By lane: the thread's dword of each row of its chunk. All threads of the warp take part.
__device__ inline void PutCodeRows(int chunk, bool active, const PlaneEncodeShared& s,
                                   const Global<std::byte> (&rows)[kExactPlane]) {
  const int lane = static_cast<int>(threadIdx.x) % kChunkVectors;
  const Shared<const uint8_t> codes =
      s.codes + static_cast<int>(threadIdx.x) / kChunkVectors * kChunkCodeBytes + lane;
  uint32_t anchor = 0, bit3 = 0, bit4 = 0, residual[2] = {0, 0};
  if (active) {
#pragma unroll
    for (int f = 0; f < kChunkVectors; ++f) {
      const uint8_t byte = codes[f * kVectorElements];
      const uint32_t q = byte;
      anchor |= (q >> 6) << 2 * f;
      bit3 |= (q >> 5 & 1) << 2 * f;
      bit4 |= (q >> 4 & 1) << 2 * f;
      residual[f % 2] |= (q & 15) << f / 2 * 4;
    }
  }
  // The pair's other chunk is in the other half of the warp.
  const uint32_t other_bit3 = __shfl_xor_sync(kFullMask, bit3, kChunkVectors);
  const uint32_t other_bit4 = __shfl_xor_sync(kFullMask, bit4, kChunkVectors);
  if (!active) return;
  const auto row = [&](int plane, int index) -> Global<uint32_t> {
    return Cast<uint32_t>(rows[plane]) + (index * kChunkVectors + lane);
  };
  row(0, chunk)[0] = anchor;
  if (chunk % 2 == 0) {
    row(1, chunk / 2)[0] = bit3 | other_bit3 << 1;
  } else {
    row(2, chunk / 2)[0] = other_bit4 | bit4 << 1;
  }
  row(3, chunk * 2)[0] = residual[0];
  row(3, chunk * 2 + 1)[0] = residual[1];
}

// Puts the thread's bits at bit `at` of the shared stream, which is zero there.
__device__ inline void PutIndices(const VectorIndices& indices, int at, Shared<uint32_t> stream) {
  uint64_t pending = 0;
  int word = at / 32;
  int num_pending = at % 32;
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    pending |= uint64_t{indices.index_and_bits[i] & 0xffff} << num_pending;
    num_pending += static_cast<int>(indices.index_and_bits[i] >> 16);
    if (num_pending < 32) continue;
    atomicOr(stream + word++, static_cast<uint32_t>(pending));
    pending >>= 32;
    num_pending -= 32;
  }
  if (num_pending > 0) atomicOr(stream + word, static_cast<uint32_t>(pending));
}

// Puts the thread's extra bits at bit `at` of the block's, which are zero there.
__device__ inline void PutExtra(const VectorIndices& indices, int at, Shared<uint32_t> extra) {
  if (indices.num_extra == 0) return;
  const uint64_t bits = uint64_t{indices.extra} << at % 32;
  atomicOr(extra + at / 32, static_cast<uint32_t>(bits));
  if (bits >> 32 != 0) atomicOr(extra + (at / 32 + 1), static_cast<uint32_t>(bits >> 32));
}

// Where the streams of a block stand.
struct StreamEnd {
  int num_words = 0;    // stored
  int num_carried = 0;  // bits in word 0 of the shared stream
  int num_extra = 0;    // bits in the shared extra words
};

// Stores the whole words of a round and keeps the rest.
__device__ inline void StoreStream(int num_bits, const PlaneEncodeShared& s, Global<uint32_t> out,
                                   StreamEnd& end) {
  const int num_words = (end.num_carried + num_bits) / 32;
  for (int w = static_cast<int>(threadIdx.x); w < num_words; w += kPlaneThreads) {
    const uint32_t word = s.stream[w];
    out[end.num_words + w] = word;
  }
  const uint32_t rest = s.stream[num_words];
  __syncthreads();
  for (int w = static_cast<int>(threadIdx.x); w <= num_words; w += kPlaneThreads) {
    s.stream[w] = w == 0 ? rest : 0;
  }
  end.num_words += num_words;
  end.num_carried = (end.num_carried + num_bits) % 32;
}

// Stores what is left of the index bits, and behind it the extra bits; both are cleared.
__device__ inline StreamWords FinishStream(const PlaneEncodeShared& s, Global<uint32_t> out,
                                           StreamEnd end) {
  const auto thread = static_cast<int>(threadIdx.x);
  if (end.num_carried > 0) {
    if (thread == 0) {
      const uint32_t rest = s.stream[0];
      out[end.num_words] = rest;
      s.stream[0] = 0;
    }
    ++end.num_words;
  }
  const int num_extra_words = (end.num_extra + 31) / 32;
  for (int w = thread; w < num_extra_words; w += kPlaneThreads) {
    const uint32_t word = s.extra[w];
    out[end.num_words + w] = word;
    s.extra[w] = 0;
  }
  return {static_cast<uint32_t>(end.num_words), static_cast<uint32_t>(num_extra_words)};
}

// Codes and exact bits of a block; the sizes of its streams, which go to `stream` (null: nowhere).
__device__ inline StreamWords EncodeBlock(const PlaneTile& tile, Global<const Bf16> elements,
                                          const PlaneEncodeShared& s,
                                          const Global<std::byte> (&rows)[kExactPlane],
                                          Global<uint32_t> stream) {
  const bool exact = stream != nullptr;
  StreamEnd end;
  for (int begin = 0; begin < tile.num_vectors(); begin += kPlaneThreads) {
    const int vector = begin + static_cast<int>(threadIdx.x);
    VectorIndices indices = {};
    if (vector < tile.num_vectors()) indices = CodeVector(tile, elements, vector, s);
    // Both sums at once: a round has less than 2^16 index bits.
    const PrefixSum sums = SumOverThreads(indices.num_bits | indices.num_extra << 16, s.warp_sums);
    PutCodeRows(vector / kChunkVectors, vector < tile.num_vectors(), s, rows);
    if (exact) {
      PutIndices(indices, end.num_carried + (sums.before & 0xffff), s.stream);
      PutExtra(indices, end.num_extra + (sums.before >> 16), s.extra);
    }
    __syncthreads();
    if (exact) StoreStream(sums.total & 0xffff, s, stream, end);
    end.num_extra += sums.total >> 16;
    __syncthreads();
  }
  return exact ? FinishStream(s, stream, end) : StreamWords{};
}

// budget: PlaneEncodeKernel registers 80 shared 27648 threads 256
__global__ void __launch_bounds__(kPlaneThreads, 3) PlaneEncodeKernel(PlaneEncodeArgs args) {
  LYNX_SHARED(int, min_key, kPageBlocks* kMaxHeadDim);
  LYNX_SHARED(int, max_key, kPageBlocks* kMaxHeadDim);
  LYNX_SHARED(float, group_lo, kParamSlots);
  LYNX_SHARED(float, group_step, kParamSlots);
  LYNX_SHARED(float, group_scale, kParamSlots);
  LYNX_SHARED(int, raw_rank, kMaxHeadDim);
  LYNX_SHARED(uint8_t, codes, kRoundCodeBytes);
  LYNX_SHARED(uint32_t, stream_words, kRoundStreamWords);
  LYNX_SHARED(uint32_t, extra_words, kExtraWords);
  LYNX_SHARED(int, warp_sums, kPlaneWarps);
  const PlaneEncodeShared s = {.min_key = min_key,
                               .max_key = max_key,
                               .group = {.lo = group_lo, .step = group_step, .raw_rank = raw_rank},
                               .scale = group_scale,
                               .codes = codes,
                               .stream = stream_words,
                               .extra = extra_words,
                               .warp_sums = warp_sums};
  const auto thread = static_cast<int>(threadIdx.x);
  const PlaneEncodePage page = args.pages[blockIdx.x];
  const PlaneLayout layout(page.shape);
  const Global<std::byte> anchor = page.planes[0];
  const Global<std::byte> exact = page.planes[kExactPlane];

  for (int i = thread; i < kPageBlocks * kMaxHeadDim; i += kPlaneThreads) {
    min_key[i] = INT16_MAX;
    max_key[i] = INT16_MIN;
  }
  for (int w = thread; w < kRoundStreamWords; w += kPlaneThreads) stream_words[w] = 0;
  for (int w = thread; w < kExtraWords; w += kPlaneThreads) extra_words[w] = 0;
  __syncthreads();
  for (int i = 0; i < layout.num_blocks; ++i) {
    const PlaneTile tile(page.shape.kind, layout, i);
    const Global<const Bf16> elements = SelectTile(page.tiles, layout.first_block + i);
    const Shared<int> min = s.min_key + i * kMaxHeadDim, max = s.max_key + i * kMaxHeadDim;
    if (tile.kind == KvKind::kKey) {
      FindRangesOfKeys(tile, elements, min, max);
    } else {
      FindRangesOfValues(tile, elements, min, max);
    }
  }
  __syncthreads();
  ChannelScale scale;
  if (layout.num_blocks > 0 && thread < layout.head_dim) {
    scale = PutChannelRange(layout, thread, s, anchor);
  }

  int num_raw = 0;  // elements
  int stream_bytes = 0;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const PlaneTile tile(page.shape.kind, layout, i);
    const Global<const Bf16> elements = SelectTile(page.tiles, layout.first_block + i);
    const int num_raw_groups = PutGroupCodes(layout, i, scale, s, anchor);
    Global<std::byte> rows[kExactPlane];
    rows[0] = anchor + layout.codes_offset() + i * layout.block_code_bytes(0);
    for (int p = 1; p < kExactPlane; ++p) {
      rows[p] = Global<std::byte>(page.planes[p]) + i * layout.block_code_bytes(p);
    }
    Global<uint32_t> stream = nullptr;
    if (exact != nullptr) {
      stream = Cast<uint32_t>(exact + layout.stream_offset() + stream_bytes);
    }
    const StreamWords words = EncodeBlock(tile, elements, s, rows, stream);
    if (exact != nullptr && thread == 0) Cast<uint32_t>(exact)[i] = words.packed();
    stream_bytes += static_cast<int>(words.bytes());
    const Global<Bf16> raw = Cast<Bf16>(anchor + layout.raw_offset()) + num_raw;
    ForEachRawElement(tile, s.group.raw_rank, [&](int element, int to) {
      const Bf16 value = elements[element];
      raw[to] = value;
    });
    num_raw += num_raw_groups * tile.num_live();
    __syncthreads();
  }

  const Global<Bf16> protected_out = Cast<Bf16>(anchor + layout.protected_offset());
  ForEachProtectedElement(layout, [&](int token, int channel, int to) {
    const Global<const Bf16> elements = SelectTile(page.tiles, token / kBlockSize);
    const int slot = token % kBlockSize;
    const bool key = page.shape.kind == KvKind::kKey;
    const Bf16 value =
        elements[key ? channel * kBlockSize + slot : slot * layout.head_dim + channel];
    protected_out[to] = value;
  });

  if (thread != 0) return;
  const Global<uint32_t> plane_bytes = args.plane_bytes + blockIdx.x * kNumPlanes;
  plane_bytes[0] = static_cast<uint32_t>(layout.raw_offset() + num_raw * sizeof(Bf16));
  for (int p = 1; p < kExactPlane; ++p) {
    plane_bytes[p] = static_cast<uint32_t>(layout.code_plane_bytes(p));
  }
  if (exact == nullptr || layout.num_blocks == 0) {
    plane_bytes[kExactPlane] = 0;
    return;
  }
  const size_t end = layout.stream_offset() + stream_bytes;
  const Global<uint32_t> padding = Cast<uint32_t>(exact + end);
  padding[0] = 0;
  padding[1] = 0;
  plane_bytes[kExactPlane] = static_cast<uint32_t>(end + PlaneLayout::kExactPadding);
}

}  // namespace lynx::cuda
