// SPDX-License-Identifier: Apache-2.0
// A page into planes (docs/plane_format.md): the bytes of
// kernels/cpu/plane_encode.cc.
//
// A CTA has a page: the key range of every group; page metadata; then block by
// block group codes, code rows, exact bits and raw groups (plane_block.cuh says
// who does what). The exact bits of a round are put together in shared memory
// and stored as whole words. Reads the page twice (the second time from the L2
// cache) and writes its planes once: 2 bytes in, about 1.4 out per element.
#pragma once

#include <algorithm>

#include "kernels/cuda/plane_block.cuh"
#include "kernels/cuda/plane_encode.h"

namespace lynx::cuda {

struct PlaneEncodeArgs {
  Global<const PlaneEncodePage> pages;  // [gridDim.x]
  Global<uint32_t> plane_bytes;         // [gridDim.x][kNumPlanes]
};

// The words of a round's exact bits: at most 16 bits an element, and a carried
// word.
inline constexpr int kRoundStreamWords = kRoundElements / 2 + 1;

struct PlaneEncodeShared {
  Shared<int> min_key;      // [kPageBlocks][kMaxHeadDim]
  Shared<int> max_key;      // same
  Shared<float> page_lo;    // [kMaxHeadDim]
  Shared<float> unit;       // [kMaxHeadDim]
  GroupParams group;        // of the block at hand
  Shared<uint8_t> codes;    // [kRoundCodeBytes]
  Shared<uint32_t> stream;  // [kRoundStreamWords]
  Shared<int> warp_sums;    // [kPlaneWarps]
};

// A quarter of a group, 16 tokens, per thread.
__device__ inline void FindKeyRanges(const PlaneTile& tile, Global<const Bf16> elements,
                                     Shared<int> min_key, Shared<int> max_key) {
  constexpr int kQuarters = kBlockSize / kVectorElements;
  const bool key = tile.kind == KvKind::kKey;
  for (int i = static_cast<int>(threadIdx.x); i < tile.head_dim * kQuarters; i += kPlaneThreads) {
    const int channel = key ? i / kQuarters : i % tile.head_dim;
    const int first = (key ? i % kQuarters : i / tile.head_dim) * kVectorElements;
    int least = INT16_MAX, greatest = INT16_MIN;
    for (int t = std::max(first, tile.live_begin);
         t < std::min(first + kVectorElements, tile.live_end); ++t) {
      const Bf16 value = elements[tile.Index(channel, t)];
      const int ordered = OrderedKey(value);
      least = std::min(least, ordered);
      greatest = std::max(greatest, ordered);
    }
    if (least > greatest) continue;
    atomicMin(min_key + channel, least);
    atomicMax(max_key + channel, greatest);
  }
}

// Page metadata of the thread's channel.
__device__ inline void PutChannelRange(const PlaneLayout& layout, int channel,
                                       const PlaneEncodeShared& s, Global<std::byte> plane) {
  int least = INT16_MAX, greatest = INT16_MIN;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const int block_least = s.min_key[i * kMaxHeadDim + channel];
    const int block_greatest = s.max_key[i * kMaxHeadDim + channel];
    if (IsRawGroup(block_least, block_greatest)) continue;
    least = std::min(least, block_least);
    greatest = std::max(greatest, block_greatest);
  }
  const ChannelRange r = least > greatest ? ChannelRange{} : CoverKeys(least, greatest);
  const Global<uint16_t> out = Cast<uint16_t>(plane);
  out[channel] = r.lo;
  out[layout.head_dim + channel] = r.range;
  s.page_lo[channel] = HalfToFloat(r.lo);
  s.unit[channel] = GroupUnit(r.range);
}

// Group metadata of the thread's channel (if it has one); the number of raw
// groups.
__device__ inline int PutGroupCodes(const PlaneLayout& layout, int block,
                                    const PlaneEncodeShared& s, Global<std::byte> plane) {
  const int channel = static_cast<int>(threadIdx.x);
  const bool has_channel = channel < layout.head_dim;
  bool raw = false;
  if (has_channel) {
    const int least = s.min_key[block * kMaxHeadDim + channel];
    const int greatest = s.max_key[block * kMaxHeadDim + channel];
    const float page_lo = s.page_lo[channel];
    const float unit = s.unit[channel];
    raw = IsRawGroup(least, greatest);
    GroupCodes codes = {kRawLowCode, kRawHighCode};
    if (!raw) codes = CodesOfGroup(least, greatest, page_lo, unit);
    s.group.lo[ParamSlot(channel)] = raw ? 0.0f : GroupLow(codes.low, unit, page_lo);
    s.group.step[ParamSlot(channel)] = raw ? 0.0f : GroupStep(codes.low, codes.high, unit);
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

// The thread's exact bits of a round: an index and its width for each element
// of its vector.
struct VectorIndices {
  uint32_t index_and_bits[kVectorElements];  // index | bits << 16
  int num_bits;
};

// By vector: codes into shared memory. Slots that are not live repeat the first
// live token's code and have no exact bits.
__device__ inline VectorIndices CodeVector(const PlaneTile& tile, Global<const Bf16> elements,
                                           int vector, const PlaneEncodeShared& s) {
  VectorIndices result = {};
  const VectorPlace place(tile, vector);
  const int slot = vector % kPlaneThreads;
  const Shared<uint8_t> codes =
      s.codes + slot / kChunkVectors * kChunkCodeBytes + slot % kChunkVectors * kVectorElements;
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    const int channel = place.channel + i * place.channel_step;
    const int token = place.token + i * place.token_step;
    const bool live = tile.live(token);
    const float step = s.group.step[ParamSlot(channel)];
    const float lo = s.group.lo[ParamSlot(channel)];
    const bool raw = s.group.raw_rank[channel] >= 0;
    Bf16 value = elements[tile.Index(channel, live ? token : tile.live_begin)];
    if (raw) value = Bf16{};
    const int q = CellOf(BoundOperand(value), step, 1.0f / step, lo);
    codes[i] = static_cast<uint8_t>(q);
    if (!live) continue;
    const Cell cell = CellValues(q, step, lo);
    const auto index = static_cast<uint32_t>(OrderedKey(value) - cell.first);
    const int bits = cell.index_bits();
    result.index_and_bits[i] = index | static_cast<uint32_t>(bits) << 16;
    result.num_bits += bits;
  }
  return result;
}

// By lane: the thread's dword of each row of its chunk. All threads of the warp
// take part.
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

// Where the exact stream of a block stands.
struct StreamEnd {
  int num_words = 0;    // stored
  int num_carried = 0;  // bits in word 0 of the shared stream
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

// Codes and exact bits of a block; the bytes of its stream. stream: where they
// go, or null.
__device__ inline int EncodeBlock(const PlaneTile& tile, Global<const Bf16> elements,
                                  const PlaneEncodeShared& s,
                                  const Global<std::byte> (&rows)[kExactPlane],
                                  Global<uint32_t> stream) {
  const bool exact = stream != nullptr;
  StreamEnd end;
  for (int begin = 0; begin < tile.num_vectors(); begin += kPlaneThreads) {
    const int vector = begin + static_cast<int>(threadIdx.x);
    VectorIndices indices = {};
    if (vector < tile.num_vectors()) indices = CodeVector(tile, elements, vector, s);
    const PrefixSum bits = SumOverThreads(indices.num_bits, s.warp_sums);
    PutCodeRows(vector / kChunkVectors, vector < tile.num_vectors(), s, rows);
    if (exact) PutIndices(indices, end.num_carried + bits.before, s.stream);
    __syncthreads();
    if (exact) StoreStream(bits.total, s, stream, end);
    __syncthreads();
  }
  if (!exact) return 0;
  if (end.num_carried > 0) {
    if (threadIdx.x == 0) {
      const uint32_t rest = s.stream[0];
      stream[end.num_words] = rest;
      s.stream[0] = 0;
    }
    ++end.num_words;
  }
  return end.num_words * static_cast<int>(sizeof(uint32_t));
}

// budget: PlaneEncodeKernel registers 128 shared 27648 threads 256
__global__ void __launch_bounds__(kPlaneThreads) PlaneEncodeKernel(PlaneEncodeArgs args) {
  LYNX_SHARED(int, min_key, kPageBlocks* kMaxHeadDim);
  LYNX_SHARED(int, max_key, kPageBlocks* kMaxHeadDim);
  LYNX_SHARED(float, page_lo, kMaxHeadDim);
  LYNX_SHARED(float, unit, kMaxHeadDim);
  LYNX_SHARED(float, group_lo, kParamSlots);
  LYNX_SHARED(float, group_step, kParamSlots);
  LYNX_SHARED(int, raw_rank, kMaxHeadDim);
  LYNX_SHARED(uint8_t, codes, kRoundCodeBytes);
  LYNX_SHARED(uint32_t, stream_words, kRoundStreamWords);
  LYNX_SHARED(int, warp_sums, kPlaneWarps);
  const PlaneEncodeShared s = {.min_key = min_key,
                               .max_key = max_key,
                               .page_lo = page_lo,
                               .unit = unit,
                               .group = {.lo = group_lo, .step = group_step, .raw_rank = raw_rank},
                               .codes = codes,
                               .stream = stream_words,
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
  __syncthreads();
  for (int i = 0; i < layout.num_blocks; ++i) {
    const PlaneTile tile(page.shape.kind, layout, i);
    FindKeyRanges(tile, SelectTile(page.tiles, layout.first_block + i), s.min_key + i * kMaxHeadDim,
                  s.max_key + i * kMaxHeadDim);
  }
  __syncthreads();
  if (layout.num_blocks > 0 && thread < layout.head_dim) {
    PutChannelRange(layout, thread, s, anchor);
  }

  int num_raw = 0;  // elements
  int stream_bytes = 0;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const PlaneTile tile(page.shape.kind, layout, i);
    const Global<const Bf16> elements = SelectTile(page.tiles, layout.first_block + i);
    const int num_raw_groups = PutGroupCodes(layout, i, s, anchor);
    Global<std::byte> rows[kExactPlane];
    rows[0] = anchor + layout.codes_offset() + i * layout.block_code_bytes(0);
    for (int p = 1; p < kExactPlane; ++p) {
      rows[p] = Global<std::byte>(page.planes[p]) + i * layout.block_code_bytes(p);
    }
    Global<uint32_t> stream = nullptr;
    if (exact != nullptr) {
      stream = Cast<uint32_t>(exact + layout.stream_offset() + stream_bytes);
    }
    const int bytes = EncodeBlock(tile, elements, s, rows, stream);
    if (exact != nullptr && thread == 0) {
      Cast<uint32_t>(exact)[i] = static_cast<uint32_t>(bytes);
    }
    stream_bytes += bytes;
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
