// SPDX-License-Identifier: Apache-2.0
// Memory that attention keeps between calls. It grows to the largest call seen and then stays, so
// that a decode step allocates nothing.
#pragma once

#include <vector>

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_segment.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm_scratch.h"

namespace lynx::cpu {

struct AttentionThreadScratch {
  ScratchArray<float> q;             // [kMaxTilePairs, padded]
  ScratchArray<float> segment;       // same: result of the current segment
  ScratchArray<float> total;         // same: of all segments so far
  ScratchArray<float> weighted;      // [kMaxBlockPairs, padded]
  ScratchArray<float> padded_value;  // [64, padded]

  void Reserve(int padded) {
    q.Reserve(size_t{kMaxTilePairs} * padded);
    segment.Reserve(size_t{kMaxTilePairs} * padded);
    total.Reserve(size_t{kMaxTilePairs} * padded);
    weighted.Reserve(size_t{kMaxBlockPairs} * padded);
    padded_value.Reserve(size_t{kBlockSize} * padded);
  }
};

struct CpuBackend::AttentionScratch {
  AttentionPlan plan;
  ScratchArray<float> partials;  // [plan.num_partials, PartialStride]
  std::vector<AttentionThreadScratch> threads;
};

}  // namespace lynx::cpu
