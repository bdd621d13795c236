// SPDX-License-Identifier: Apache-2.0
// Memory that attention keeps between calls. It grows to the largest call seen and then stays, so
// that a decode step allocates nothing.
#pragma once

#include <utility>
#include <vector>

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_segment.h"
#include "kernels/cpu/gemm_scratch.h"

namespace lynx::cpu {

struct AttentionThreadScratch {
  ScratchArray<float> q;             // [kMaxTilePairs, padded]
  ScratchArray<float> segment;       // same: result of the current segment
  ScratchArray<float> total;         // same: of all segments so far
  ScratchArray<float> weighted;      // same: values of a block
  ScratchArray<float> padded_value;  // [64, padded]
  AmxScratch amx;                    // of the four arrays below; kernels null: no AMX
  ScratchArray<float> amx_queries;
  ScratchArray<float> amx_probabilities;
  ScratchArray<float> amx_panels;
  ScratchArray<float> amx_scores;
  int tile_rows = 0;

  void Reserve(int padded, const Bf16Kernels* amx_kernels) {
    q.Reserve(size_t{kMaxTilePairs} * padded);
    segment.Reserve(size_t{kMaxTilePairs} * padded);
    total.Reserve(size_t{kMaxTilePairs} * padded);
    weighted.Reserve(size_t{kMaxTilePairs} * padded);
    padded_value.Reserve(size_t{kBlockSize} * padded);
    if (amx_kernels == nullptr) return;
    amx = {.kernels = amx_kernels,
           .tile_rows = &tile_rows,
           .queries = amx_queries.Reserve(size_t{kMaxTilePairs} * padded / 2),
           .probabilities = amx_probabilities.Reserve(size_t{kMaxTilePairs} * kBlockSize / 2),
           .panels = amx_panels.Reserve(size_t{kBlockSize} * padded / 2),
           .scores = amx_scores.Reserve(size_t{kMaxTilePairs} * kBlockSize)};
  }
  // After the last task of a call, on the thread that ran them.
  void ReleaseTiles() {
    if (std::exchange(tile_rows, 0) != 0) amx.kernels->release();
  }
};

struct AttentionScratch {
  AttentionPlan plan;
  ScratchArray<float> partials;  // [plan.num_partials, PartialStride]
  std::vector<AttentionThreadScratch> threads;
};

}  // namespace lynx::cpu
