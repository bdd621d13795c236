// SPDX-License-Identifier: Apache-2.0
// What the plane encoder and decoder share: who does what in a block, and a few steps of both.
//
// A CTA of 256 threads has one page and walks its live blocks in order. It takes a tile in rounds
// of 256 vectors (16 chunks, 4096 elements), in which a thread has two jobs:
//
//   by vector  thread v has the 16 consecutive elements of vector v of the round: values, cells,
//              exact bits. A thread's exact bits are consecutive in the stream; a prefix sum over
//              the CTA says where they begin.
//   by lane    thread 16 k + l has lane l of chunk k: one dword in each row of its chunk, so that a
//              warp has a pair of chunks and stores or loads 128 consecutive bytes.
//
// Between the two jobs the codes stand in shared memory, a byte each.
#pragma once

#include "kernels/common/plane_math.h"
#include "kernels/cuda/device.cuh"
#include "lynx/plane_format.h"

namespace lynx::cuda {

inline constexpr int kPlaneThreads = 256;
inline constexpr int kPlaneWarps = kPlaneThreads / kWarpSize;
inline constexpr int kVectorElements = 16;
inline constexpr int kChunkVectors = 16;
inline constexpr int kRoundElements = kPlaneThreads * kVectorElements;

// The codes of a chunk, and 16 bytes so that the two chunks of a warp lie in different banks.
inline constexpr int kChunkCodeBytes = kChunkVectors * kVectorElements + 16;
inline constexpr int kRoundCodeBytes = kPlaneThreads / kChunkVectors * kChunkCodeBytes;

// Group parameters by channel stand one word apart for every 16 channels: the vectors of a value
// tile read 16 channels each, at the same time.
inline constexpr int kParamSlots = kMaxHeadDim + kMaxHeadDim / 16;
__device__ inline int ParamSlot(int channel) { return channel + channel / 16; }

struct GroupParams {
  Shared<float> lo;      // [kParamSlots]
  Shared<float> step;    // [kParamSlots]
  Shared<int> raw_rank;  // [head_dim] which of the block's raw groups this channel is, or -1
};

// A block of the page: its tile and which of its tokens are live.
struct PlaneTile {
  KvKind kind;
  int head_dim;
  int live_begin;
  int live_end;
  __device__ PlaneTile(KvKind kind, const PlaneLayout& layout, int block)
      : kind(kind),
        head_dim(layout.head_dim),
        live_begin(layout.block_live_begin(block)),
        live_end(layout.block_live_end(block)) {}
  __device__ int num_vectors() const { return head_dim * kBlockSize / kVectorElements; }
  __device__ int num_live() const { return live_end - live_begin; }
  __device__ bool live(int token) const { return token >= live_begin && token < live_end; }
  __device__ int Index(int channel, int token) const {
    return kind == KvKind::kKey ? channel * kBlockSize + token : token * head_dim + channel;
  }
};

// Element i of a vector is (channel + i · channel_step, token + i · token_step).
struct VectorPlace {
  int channel;
  int token;
  int channel_step;
  int token_step;
  __device__ VectorPlace(const PlaneTile& tile, int vector) {
    const int first = vector * kVectorElements;
    const bool key = tile.kind == KvKind::kKey;
    const int row = key ? kBlockSize : tile.head_dim;
    channel = key ? first / row : first % row;
    token = key ? first % row : first / row;
    channel_step = key ? 0 : 1;
    token_step = key ? 1 : 0;
  }
  __device__ bool AllLive(const PlaneTile& tile) const {
    return tile.live(token) && tile.live(token + (kVectorElements - 1) * token_step);
  }
};

// The tile of block b; a page's pointers are few and stay in registers.
template <typename T>
__device__ T* SelectTile(T* const (&tiles)[kPageBlocks], int b) {
  return b < 2 ? (b == 0 ? tiles[0] : tiles[1]) : (b == 2 ? tiles[2] : tiles[3]);
}

// Two BF16 elements a word.
struct VectorWords {
  uint32_t words[kVectorElements / 2];
  __device__ uint32_t bits(int i) const { return words[i / 2] >> i % 2 * 16 & 0xffff; }
  __device__ void Replace(int i, uint32_t bits) {
    const int shift = i % 2 * 16;
    words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | bits << shift;
  }
};
__device__ inline VectorWords LoadVector(Global<const Bf16> elements, int vector) {
  const Global<const uint4> halves = Cast<const uint4>(elements) + vector * 2;
  const uint4 a = halves[0];
  const uint4 b = halves[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// The codes of a vector of the round, a byte each, in four words.
__device__ inline Shared<uint4> CodesOfVector(Shared<uint8_t> codes, int vector) {
  const int slot = vector % kPlaneThreads;
  return Cast<uint4>(codes + slot / kChunkVectors * kChunkCodeBytes +
                     slot % kChunkVectors * kVectorElements);
}

struct PrefixSum {
  int before;  // of the threads in front of this one
  int total;
};
// Sums over the CTA. One barrier inside; the caller has another between two calls.
__device__ inline PrefixSum SumOverThreads(int value, Shared<int> warp_sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  int sum = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const int other = __shfl_up_sync(kFullMask, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarpSize - 1) warp_sums[warp] = sum;
  __syncthreads();
  PrefixSum result = {sum - value, 0};
  // Not all at once: that would take registers which the decoder does not have.
#pragma unroll 2
  for (int w = 0; w < kPlaneWarps; ++w) {
    const int warp_sum = warp_sums[w];
    if (w < warp) result.before += warp_sum;
    result.total += warp_sum;
  }
  return result;
}

// Calls move(channel, i) for every raw group of a block: element i of the block's raw bytes is the
// channel's live token i % num_live. A warp has a group at a time.
template <typename Move>
__device__ void ForEachRawElement(const PlaneTile& tile, Shared<int> raw_rank, Move move) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int c = static_cast<int>(threadIdx.x) / kWarpSize; c < tile.head_dim; c += kPlaneWarps) {
    const int rank = raw_rank[c];
    if (rank < 0) continue;
    for (int t = lane; t < tile.num_live(); t += kWarpSize) {
      move(tile.Index(c, tile.live_begin + t), rank * tile.num_live() + t);
    }
  }
}

// Calls move(token of the page, channel, i) for every element i of the protected tokens' bytes.
template <typename Move>
__device__ void ForEachProtectedElement(const PlaneLayout& layout, Move move) {
  const int count = layout.num_protected * layout.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kPlaneThreads) {
    const int row = i / layout.head_dim;
    const int token = row < layout.live_begin ? row : row - layout.live_begin + layout.live_end;
    move(token, i % layout.head_dim, i);
  }
}

}  // namespace lynx::cuda
