// SPDX-License-Identifier: Apache-2.0
// Joins the segments of split tiles, in order. Moves 4 · head_dim bytes per pair and segment.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace lynx::cuda {

struct AttentionMergeArgs {
  AttentionArgs attention;
  Global<const AttentionMerge> merges;
  int head_dim = 0;
};

inline constexpr int kMergeWarps = 4;
inline constexpr int kMergeChannels = 256 / kWarpSize;  // of a lane, at most

// Joins the segments of a split tile's pairs: one warp per pair, a lane holds every 32nd channel.
// budget: AttentionMergeKernel registers 48 shared 0 threads 128
__global__ void __launch_bounds__(kMergeWarps* kWarpSize)
    AttentionMergeKernel(AttentionMergeArgs args) {
  const AttentionArgs& attention = args.attention;
  const AttentionMerge tile = args.merges[blockIdx.x];
  const AttentionGroup group = attention.groups[tile.group];
  const int kv_head = blockIdx.y, lane = threadIdx.x % kWarpSize;
  const int heads_per_kv_head = attention.num_heads / attention.num_kv_heads;
  for (int pair = threadIdx.x / kWarpSize; pair < tile.num_pairs; pair += kMergeWarps) {
    float max = kMinusInfinity, sum = 0, out[kMergeChannels] = {};
    for (int s = 0; s < tile.num_segments; ++s) {
      const int64_t slot =
          int64_t{tile.partial + s * tile.num_pairs + pair} * attention.num_kv_heads + kv_head;
      const float segment_max = attention.partial_sums[slot * 2];
      const float segment_sum = attention.partial_sums[slot * 2 + 1];
      if (!(segment_max > kMinusInfinity)) continue;
      const SegmentMerge merge(max, segment_max);
      max = merge.max;
      sum = merge(sum, segment_sum);
#pragma unroll
      for (int i = 0; i < kMergeChannels; ++i) {
        const int channel = lane + i * kWarpSize;
        if (channel >= args.head_dim) continue;
        const float segment_out = attention.partial_outs[slot * args.head_dim + channel];
        out[i] = merge(out[i], segment_out);
      }
    }
    const int head = kv_head * heads_per_kv_head + (tile.pair_begin + pair) % heads_per_kv_head;
    const int row = group.row_begin + (tile.pair_begin + pair) / heads_per_kv_head;
    const auto to = attention.out + (int64_t{row} * attention.num_heads + head) * args.head_dim;
#pragma unroll
    for (int i = 0; i < kMergeChannels; ++i) {
      const int channel = lane + i * kWarpSize;
      if (channel < args.head_dim) to[channel] = out[i] / sum;
    }
  }
}

}  // namespace lynx::cuda
