// SPDX-License-Identifier: Apache-2.0
// Attention over tiles of 64 tokens, with tensor cores.
//
// A CTA owns one unit (attention_plan.h) of one KV head: 16 · kRowTiles pairs. kParts warps share
// each 16-row mma tile: they split the tokens of q · k and the channels of p · v, never a sum, so
// that a pair's bits are the same in every shape. Per block of 64 tokens:
//
//   keys    x = (q · k) · scale from shared memory; the row maxima of the parts meet there too
//   p       exp(x − max), rounded to BF16, stored as the A operand of the second product
//   values  o = fma(o, a, p · v), s = fma(s, a, p · 1): mma from 0, then one fma (attention.h)
//
// There is one buffer for keys and one for values: the next block's keys are copied while this
// block's values are in use and the reverse. Rows of shared memory are 16 bytes longer than their
// elements, which puts the 8 rows of an ldmatrix in different banks. A row that does not see a
// block has p = 0 there and keeps its state untouched.
//
// Moves 4 · head_dim bytes per token, KV head and CTA (keys and values), so the operations per
// byte are the pairs of the CTA; 4 · head_dim FLOPs per pair and token.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/common/math_ref.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"

namespace lynx::cuda {

struct AttentionArgs {
  Global<const float> q;  // [rows, num_heads, head_dim]
  Global<float> out;      // [rows, num_heads, head_dim]
  int num_heads = 0;
  int num_kv_heads = 0;
  float scale = 0;
  int sliding_window = 0;
  Global<const Bf16> pool;
  int64_t block_stride = 0;    // elements
  int64_t tile_begin[2] = {};  // elements, of KV head 0's key and value tiles in a block
  Global<const AttentionGroup> groups;
  Global<const BlockId> block_tables;
  Global<const AttentionUnit> units;
  Global<float> partial_outs;  // [slots][num_kv_heads][head_dim], per pair of a split tile
  Global<float> partial_sums;  // [slots][num_kv_heads][2]: max, sum
};

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <int kHeadDim_, int kRowTiles_, int kParts_>
struct AttentionShape {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kParts = kParts_;
  static constexpr int kThreads = kWarpSize * kRowTiles * kParts;
  static constexpr int kPairs = 16 * kRowTiles;
  // Resident CTAs to leave registers for: 16 warps, or 8 where shared memory allows no more.
  static constexpr int kMinBlocks = std::max((kHeadDim > 128 ? 256 : 512) / kThreads, 1);
  static constexpr int kChannels = std::max(kHeadDim, 32);      // padded with zeros
  static constexpr int kTokenTiles = kBlockSize / 8 / kParts;   // of a warp, 8 tokens each
  static constexpr int kChannelTiles = kChannels / 8 / kParts;  // of a warp, 8 channels each
  // Elements from row to row of each array in shared memory.
  static constexpr int kKeyStride = kBlockSize + 8;
  static constexpr int kValueStride = kChannels + 8;
  static constexpr int kQueryStride = kChannels + 8;
  static constexpr int kWeightStride = kBlockSize + 8;
  // Bytes.
  static constexpr int kKeyAt = 0;
  static constexpr int kValueAt = kKeyAt + kChannels * kKeyStride * 2;
  static constexpr int kQueryAt = kValueAt + kBlockSize * kValueStride * 2;
  static constexpr int kWeightAt = kQueryAt + kPairs * kQueryStride * 2;
  static constexpr int kMaximaAt = kWeightAt + kPairs * kWeightStride * 2;
  static constexpr int kSharedBytes = kMaximaAt + kParts * kPairs * 4;
  static_assert(kTokenTiles * kParts * 8 == kBlockSize && kChannelTiles * kParts * 8 == kChannels);
};
template <int kHeadDim>
using NarrowShape = AttentionShape<kHeadDim, kNarrowPairs / 16, 4>;
template <int kHeadDim>
using WideShape = AttentionShape<kHeadDim, kWidePairs / 16, (kHeadDim >= 96 ? 4 : 2)>;

// The arrays of a CTA in shared memory.
template <typename Shape>
struct AttentionShared {
  Shared<Bf16> key;      // [kChannels][kKeyStride]
  Shared<Bf16> value;    // [kBlockSize][kValueStride]
  Shared<Bf16> query;    // [kPairs][kQueryStride]
  Shared<Bf16> weights;  // [kPairs][kWeightStride], p
  Shared<float> maxima;  // [kParts][kPairs]

  __device__ explicit AttentionShared(Shared<std::byte> base)
      : key(Cast<Bf16>(base + Shape::kKeyAt)),
        value(Cast<Bf16>(base + Shape::kValueAt)),
        query(Cast<Bf16>(base + Shape::kQueryAt)),
        weights(Cast<Bf16>(base + Shape::kWeightAt)),
        maxima(Cast<float>(base + Shape::kMaximaAt)) {}
};

// A CTA's unit.
struct AttentionTask {
  AttentionUnit unit;
  AttentionGroup group;
  int kv_head;
  int heads_per_kv_head;
  int num_pairs;    // of the tile
  int block_begin;  // blocks that some row of the tile sees, inside the unit's segments
  int block_end;

  __device__ AttentionTask(const AttentionArgs& args, int tile_pairs) : kv_head(blockIdx.y) {
    unit = args.units[blockIdx.x];
    group = args.groups[unit.group];
    heads_per_kv_head = args.num_heads / args.num_kv_heads;
    num_pairs = std::min(tile_pairs, group.num_rows * heads_per_kv_head - unit.pair_begin);
    block_begin = std::max(FirstVisible(position(0), args.sliding_window) / kBlockSize,
                           unit.segment_begin * kSegmentBlocks);
    block_end =
        std::min(position(num_pairs - 1) / kBlockSize + 1, unit.segment_end * kSegmentBlocks);
  }

  // -1, which sees nothing, for a pair that does not exist.
  __device__ int position(int pair) const {
    if (pair >= num_pairs) return -1;
    return group.position + (unit.pair_begin + pair) / heads_per_kv_head;
  }
  // Offset of a pair in q and out.
  __device__ int64_t offset(const AttentionArgs& args, int pair, int head_dim) const {
    const int row = group.row_begin + (unit.pair_begin + pair) / heads_per_kv_head;
    const int head = kv_head * heads_per_kv_head + (unit.pair_begin + pair) % heads_per_kv_head;
    return (int64_t{row} * args.num_heads + head) * head_dim;
  }
};

// Where a thread stands: warp = row tile · kParts + part; of its mma tiles it holds rows g and
// g + 8, columns 2t and 2t + 1.
template <typename Shape>
struct AttentionLane {
  int lane = threadIdx.x % kWarpSize;
  int g = lane / 4;
  int t = lane % 4;
  int part = threadIdx.x / kWarpSize % Shape::kParts;
  int row_tile = threadIdx.x / kWarpSize / Shape::kParts;
  __device__ int pair(int i) const { return row_tile * 16 + g + 8 * i; }
};

// Online softmax over some of the keys, of a thread's two pairs.
template <typename Shape>
struct AttentionState {
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {};
  float out[Shape::kChannelTiles][4] = {};
};

// How a segment's state (max, …) joins the total of the segments before it.
struct SegmentMerge {
  float max, keep, add;
  __device__ SegmentMerge(float total_max, float segment_max)
      : max(MaxRef(total_max, segment_max)),
        keep(ExpRef(total_max - max)),
        add(ExpRef(segment_max - max)) {}
  __device__ float operator()(float total, float segment) const {
    return fmaf(segment, add, total * keep);
  }
};

// Rounds the tile's queries to BF16; pairs and channels that do not exist are 0.
template <typename Shape>
__device__ void LoadQuery(const AttentionArgs& args, const AttentionTask& task,
                          Shared<Bf16> query) {
  constexpr int kWords = Shape::kChannels / 2;
  for (int i = threadIdx.x; i < Shape::kPairs * kWords; i += Shape::kThreads) {
    const int pair = i / kWords, channel = i % kWords * 2;
    uint32_t word = 0;
    if (pair < task.num_pairs && channel < Shape::kHeadDim) {
      const auto from = args.q + (task.offset(args, pair, Shape::kHeadDim) + channel);
      const float first = from[0], second = from[1];
      word = RoundToBf16(first, second);
    }
    Cast<uint32_t>(query + (pair * Shape::kQueryStride + channel))[0] = word;
  }
}

// The tiles of the pool.
template <typename Shape>
struct PoolTiles {
  const AttentionArgs& args;
  const AttentionTask& task;
  AttentionShared<Shape> shared;

  // Starts copying a tile to its buffer, which nobody reads.
  __device__ void Start(KvKind kind, int block) const {
    constexpr int kHeadDim = Shape::kHeadDim;
    const BlockId id = args.block_tables[task.group.table_begin + block];
    const auto tile = args.pool + (id * args.block_stride + args.tile_begin[int(kind)] +
                                   int64_t{task.kv_head} * kBlockSize * kHeadDim);
    const bool is_key = kind == KvKind::kKey;
    const int row_elements = is_key ? kBlockSize : kHeadDim;
    const int stride = is_key ? Shape::kKeyStride : Shape::kValueStride;
    const auto buffer = is_key ? shared.key : shared.value;
#pragma unroll 2
    for (int i = threadIdx.x; i < kBlockSize * kHeadDim / 8; i += Shape::kThreads) {
      const int row = i * 8 / row_elements, column = i * 8 % row_elements;
      CopyAsync16(Cast<std::byte>(buffer + (row * stride + column)),
                  Cast<const std::byte>(tile + i * 8));
    }
  }
  // Called by all threads when the copy has landed.
  __device__ void Finish(KvKind, int) const {}
};

// Buffers wider than the tiles: what lies beyond is 0.
template <typename Shape>
__device__ void ZeroPadding(const AttentionShared<Shape>& shared) {
  if constexpr (Shape::kChannels > Shape::kHeadDim) {
    constexpr int kPad = Shape::kChannels - Shape::kHeadDim;
    for (int i = threadIdx.x; i < kPad * kBlockSize; i += Shape::kThreads) {
      const int channel = Shape::kHeadDim + i % kPad, token = i / kPad;
      shared.key[channel * Shape::kKeyStride + token] = Bf16{};
      shared.value[token * Shape::kValueStride + channel] = Bf16{};
    }
  }
}

// Fragment addresses. A operands are row-major [row][k]; B operands lie [k][n], 32 of k at a time.
template <typename Shape>
__device__ Shared<const Bf16> RowFragment(const AttentionLane<Shape>& lane, Shared<const Bf16> rows,
                                          int stride, int k) {
  return rows + ((lane.row_tile * 16 + lane.lane % 16) * stride + k + lane.lane / 16 * 8);
}

// c += A · B over the 32 of k from `b` on: two mma.
__device__ inline void MultiplyAdd32(float (&c)[4], const uint32_t (&first)[4],
                                     const uint32_t (&second)[4], Shared<const Bf16> b) {
  uint32_t r[4];
  LoadMatrix4Transposed(r, b);
  const uint32_t low[2] = {r[0], r[1]}, high[2] = {r[2], r[3]};
  MmaBf16(c, first, low);
  MmaBf16(c, second, high);
}

// x = q · k of the warp's rows and tokens.
template <typename Shape>
__device__ void Scores(const AttentionLane<Shape>& lane, const AttentionShared<Shape>& shared,
                       float (&x)[Shape::kTokenTiles][4]) {
#pragma unroll
  for (int k = 0; k < Shape::kChannels; k += 32) {
    uint32_t first[4], second[4];
    LoadMatrix4(first, RowFragment<Shape>(lane, shared.query, Shape::kQueryStride, k));
    LoadMatrix4(second, RowFragment<Shape>(lane, shared.query, Shape::kQueryStride, k + 16));
#pragma unroll
    for (int n = 0; n < Shape::kTokenTiles; ++n) {
      const int token = (lane.part * Shape::kTokenTiles + n) * 8;
      MultiplyAdd32(x[n], first, second,
                    shared.key + ((k + lane.lane) * Shape::kKeyStride + token));
    }
  }
}

// The slots of a block that a pair sees: [begin, end), none if begin >= end.
struct SlotRange {
  int begin = 0;
  int end = 0;
  __device__ bool empty() const { return begin >= end; }
  __device__ bool contains(int slot) const { return slot >= begin && slot < end; }
};
__device__ inline SlotRange VisibleSlots(int position, int sliding_window, int block) {
  const int first = block * kBlockSize;
  return {std::max(FirstVisible(position, sliding_window) - first, 0),
          std::min(position + 1 - first, int{kBlockSize})};
}

// Scales x, hides what a pair does not see, and shares the row maxima with the other parts.
template <typename Shape>
__device__ void MaskAndShareMaxima(const AttentionLane<Shape>& lane, float scale,
                                   const SlotRange (&seen)[2], Shared<float> maxima,
                                   float (&x)[Shape::kTokenTiles][4]) {
  float max[2] = {kMinusInfinity, kMinusInfinity};
#pragma unroll
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    const int slot = (lane.part * Shape::kTokenTiles + n) * 8 + 2 * lane.t;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[n][j] = seen[j / 2].contains(slot + j % 2) ? x[n][j] * scale : kMinusInfinity;
      max[j / 2] = MaxRef(max[j / 2], x[n][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    max[i] = MaxRef(max[i], __shfl_xor_sync(kFullMask, max[i], 1));
    max[i] = MaxRef(max[i], __shfl_xor_sync(kFullMask, max[i], 2));
    if (lane.t == 0) maxima[lane.part * Shape::kPairs + lane.pair(i)] = max[i];
  }
}

// Stores p and returns, per pair, the new maximum in max and exp(old maximum − new) in keep.
template <typename Shape>
__device__ void ShareWeights(const AttentionLane<Shape>& lane, const AttentionShared<Shape>& shared,
                             const float (&x)[Shape::kTokenTiles][4], float (&max)[2],
                             float (&keep)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float old = max[i];
    for (int part = 0; part < Shape::kParts; ++part) {
      const float other = shared.maxima[part * Shape::kPairs + lane.pair(i)];
      max[i] = MaxRef(max[i], other);
    }
    keep[i] = ExpRef(old - max[i]);
#pragma unroll
    for (int n = 0; n < Shape::kTokenTiles; ++n) {
      float p[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float score = x[n][2 * i + j];
        p[j] = score == kMinusInfinity ? 0.0f : ExpRef(score - max[i]);
      }
      const int slot = (lane.part * Shape::kTokenTiles + n) * 8 + 2 * lane.t;
      Cast<uint32_t>(shared.weights + (lane.pair(i) * Shape::kWeightStride + slot))[0] =
          RoundToBf16(p[0], p[1]);
    }
  }
}

// Adds the block's p · v and Σ p to the state of the pairs that see it.
template <typename Shape>
__device__ void AddValues(const AttentionLane<Shape>& lane, const AttentionShared<Shape>& shared,
                          const SlotRange (&seen)[2], const float (&max)[2], const float (&keep)[2],
                          AttentionState<Shape>& state) {
  uint32_t p[kBlockSize / 16][4];
#pragma unroll
  for (int k = 0; k < kBlockSize / 16; ++k) {
    LoadMatrix4(p[k], RowFragment<Shape>(lane, shared.weights, Shape::kWeightStride, 16 * k));
  }
  constexpr uint32_t kOnes[2] = {0x3f803f80u, 0x3f803f80u};
  float sums[4] = {};
#pragma unroll
  for (int k = 0; k < kBlockSize / 16; ++k) MmaBf16(sums, p[k], kOnes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (seen[i].empty()) continue;
    state.max[i] = max[i];
    state.sum[i] = fmaf(state.sum[i], keep[i], sums[2 * i]);
  }
#pragma unroll
  for (int n = 0; n < Shape::kChannelTiles; ++n) {
    const int channel = (lane.part * Shape::kChannelTiles + n) * 8;
    float c[4] = {};
#pragma unroll
    for (int k = 0; k < kBlockSize; k += 32) {
      MultiplyAdd32(c, p[k / 16], p[k / 16 + 1],
                    shared.value + ((k + lane.lane) * Shape::kValueStride + channel));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!seen[j / 2].empty()) state.out[n][j] = fmaf(state.out[n][j], keep[j / 2], c[j]);
    }
  }
}

// Calls use(channel, out of that channel, out of the next) for what the thread holds of pair(i).
template <typename Shape, typename Use>
__device__ void ForEachOutput(const AttentionLane<Shape>& lane, const AttentionState<Shape>& state,
                              int i, Use use) {
#pragma unroll
  for (int n = 0; n < Shape::kChannelTiles; ++n) {
    const int channel = (lane.part * Shape::kChannelTiles + n) * 8 + 2 * lane.t;
    if (channel < Shape::kHeadDim) use(channel, state.out[n][2 * i], state.out[n][2 * i + 1]);
  }
}

// The total over the segments so far. Its outputs wait in args.out: each segment adds to them and
// the last one divides them by the sum.
struct AttentionTotal {
  float max[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {};
};

template <typename Shape>
__device__ void MergeSegment(const AttentionArgs& args, const AttentionTask& task,
                             const AttentionLane<Shape>& lane, const AttentionState<Shape>& segment,
                             bool is_last, AttentionTotal& total) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane.pair(i) >= task.num_pairs) continue;
    const bool is_first = !(total.max[i] > kMinusInfinity);
    const bool is_seen = segment.max[i] > kMinusInfinity;
    const SegmentMerge merge(total.max[i], segment.max[i]);
    if (is_seen) {
      total.max[i] = merge.max;
      total.sum[i] = merge(total.sum[i], segment.sum[i]);
    }
    const auto out = args.out + task.offset(args, lane.pair(i), Shape::kHeadDim);
    const auto merged = [&](int channel, float added) {
      float sum = 0;
      if (!is_first) sum = out[channel];
      if (is_seen) sum = merge(sum, added);
      return is_last ? sum / total.sum[i] : sum;
    };
    ForEachOutput<Shape>(lane, segment, i, [&](int channel, float first, float second) {
      out[channel] = merged(channel, first);
      out[channel + 1] = merged(channel + 1, second);
    });
  }
}

template <typename Shape>
__device__ void StorePartial(const AttentionArgs& args, const AttentionTask& task,
                             const AttentionLane<Shape>& lane,
                             const AttentionState<Shape>& segment) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane.pair(i) >= task.num_pairs) continue;
    const int64_t slot =
        int64_t{task.unit.partial + lane.pair(i)} * args.num_kv_heads + task.kv_head;
    const auto out = args.partial_outs + slot * Shape::kHeadDim;
    ForEachOutput<Shape>(lane, segment, i, [&](int channel, float first, float second) {
      out[channel] = first;
      out[channel + 1] = second;
    });
    if (lane.part > 0 || lane.t > 0) continue;
    args.partial_sums[slot * 2] = segment.max[i];
    args.partial_sums[slot * 2 + 1] = segment.sum[i];
  }
}

// One block: x, p, then values. Ends with both buffers free or being filled for the next block.
template <typename Shape, typename Tiles>
__device__ void AttendBlock(const AttentionArgs& args, const AttentionTask& task,
                            const AttentionLane<Shape>& lane, const AttentionShared<Shape>& shared,
                            const Tiles& tiles, const int (&positions)[2], int block,
                            AttentionState<Shape>& segment) {
  const SlotRange seen[2] = {VisibleSlots(positions[0], args.sliding_window, block),
                             VisibleSlots(positions[1], args.sliding_window, block)};
  CopyWait<1>();
  __syncthreads();
  tiles.Finish(KvKind::kKey, block);
  float x[Shape::kTokenTiles][4] = {};
  Scores<Shape>(lane, shared, x);
  MaskAndShareMaxima<Shape>(lane, args.scale, seen, shared.maxima, x);
  __syncthreads();
  if (block + 1 < task.block_end) tiles.Start(KvKind::kKey, block + 1);
  CopyCommit();
  float max[2] = {segment.max[0], segment.max[1]}, keep[2];
  ShareWeights<Shape>(lane, shared, x, max, keep);
  CopyWait<1>();
  __syncthreads();
  tiles.Finish(KvKind::kValue, block);
  AddValues<Shape>(lane, shared, seen, max, keep, segment);
  __syncthreads();
  if (block + 1 < task.block_end) tiles.Start(KvKind::kValue, block + 1);
  CopyCommit();
}

template <typename Shape, typename Tiles>
__device__ void AttendUnit(const AttentionArgs& args, const AttentionTask& task,
                           const AttentionShared<Shape>& shared, const Tiles& tiles) {
  const AttentionLane<Shape> lane;
  if (task.block_begin < task.block_end) tiles.Start(KvKind::kKey, task.block_begin);
  CopyCommit();
  if (task.block_begin < task.block_end) tiles.Start(KvKind::kValue, task.block_begin);
  CopyCommit();
  LoadQuery<Shape>(args, task, shared.query);
  ZeroPadding<Shape>(shared);

  AttentionState<Shape> segment;
  AttentionTotal total;
  const int positions[2] = {task.position(lane.pair(0)), task.position(lane.pair(1))};
  for (int block = task.block_begin; block < task.block_end; ++block) {
    AttendBlock<Shape>(args, task, lane, shared, tiles, positions, block, segment);
    if (task.unit.partial >= 0) continue;
    const bool is_last = block + 1 == task.block_end;
    if (!is_last && (block + 1) % kSegmentBlocks != 0) continue;
    MergeSegment<Shape>(args, task, lane, segment, is_last, total);
    segment = {};
  }
  if (task.unit.partial >= 0) StorePartial<Shape>(args, task, lane, segment);
}

template <typename Shape>
__device__ void AttendPool(const AttentionArgs& args) {
  LYNX_DYNAMIC_SHARED(base);
  const AttentionShared<Shape> shared(base);
  const AttentionTask task(args, Shape::kPairs);
  AttendUnit<Shape>(args, task, shared, PoolTiles<Shape>{args, task, shared});
}

// budget: AttentionNarrowKernel<16> registers 104 shared 13568 threads 128
// budget: AttentionNarrowKernel<32> registers 104 shared 13568 threads 128
// budget: AttentionNarrowKernel<64> registers 112 shared 23296 threads 128
// budget: AttentionNarrowKernel<96> registers 128 shared 33024 threads 128
// budget: AttentionNarrowKernel<128> registers 128 shared 42752 threads 128
// budget: AttentionNarrowKernel<256> registers 204 shared 81664 threads 128
template <int kHeadDim>
__global__ void __launch_bounds__(NarrowShape<kHeadDim>::kThreads,
                                  NarrowShape<kHeadDim>::kMinBlocks)
    AttentionNarrowKernel(AttentionArgs args) {
  AttendPool<NarrowShape<kHeadDim>>(args);
}

// budget: AttentionWideKernel<16> registers 128 shared 24576 threads 256
// budget: AttentionWideKernel<32> registers 128 shared 24576 threads 256
// budget: AttentionWideKernel<64> registers 128 shared 37376 threads 256
// budget: AttentionWideKernel<96> registers 128 shared 50688 threads 512
// budget: AttentionWideKernel<128> registers 128 shared 63488 threads 512
// budget: AttentionWideKernel<256> registers 128 shared 114688 threads 512
template <int kHeadDim>
__global__ void __launch_bounds__(WideShape<kHeadDim>::kThreads, WideShape<kHeadDim>::kMinBlocks)
    AttentionWideKernel(AttentionArgs args) {
  AttendPool<WideShape<kHeadDim>>(args);
}

}  // namespace lynx::cuda
