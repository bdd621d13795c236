// SPDX-License-Identifier: Apache-2.0
// What the launchers of attention over tiles and over planes share.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention.h"

namespace lynx::cuda {

// Everything but the units. Scratch has the outputs of all split segments, then their maxima and
// sums.
inline AttentionArgs MakeAttentionArgs(const AttentionCall& call) {
  const KvLayout& layout = call.pool.layout;
  const auto begin = [&](KvKind kind) {
    return static_cast<int64_t>(layout.tile_offset(call.layer, kind, 0) / sizeof(Bf16));
  };
  const int64_t num_states = call.work.num_slots * layout.num_kv_heads;
  return {.q = call.q,
          .out = call.out,
          .num_heads = call.num_heads,
          .num_kv_heads = layout.num_kv_heads,
          .scale = call.scale,
          .sliding_window = call.sliding_window,
          .pool = reinterpret_cast<const Bf16*>(call.pool.base),
          .block_stride = static_cast<int64_t>(layout.block_bytes() / sizeof(Bf16)),
          .tile_begin = {begin(KvKind::kKey), begin(KvKind::kValue)},
          .groups = call.work.groups,
          .block_tables = call.work.block_tables,
          .partial_outs = call.scratch,
          .partial_sums = call.scratch + num_states * layout.head_dim};
}

// Joins the split segments of a call whose tiles have been launched.
void LaunchAttentionMerge(cudaStream_t stream, const AttentionCall& call);

}  // namespace lynx::cuda
