// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/attention_segment.h"
#include "kernels/cpu/cpu_backend.h"

namespace lynx::cpu {
namespace {

// A partial in memory: `padded` channels, the maximum, the sum.
size_t PartialStride(int padded) { return padded + 16; }

// One call of attention, as every thread sees it.
class Call {
 public:
  Call(const AttentionParams& params, const AttentionKernels& kernels, const AttentionPlan& plan,
       float* partials)
      : params_(params),
        kernels_(kernels),
        plan_(plan),
        partials_(partials),
        heads_per_kv_head_(params.num_heads / params.pool.layout.num_kv_heads),
        head_dim_(params.pool.layout.head_dim),
        padded_(PaddedHeadDim(head_dim_)) {}

  // next: the unit that this thread is likely to run then, to be prefetched.
  void RunUnit(const AttentionUnit& unit, const AttentionUnit& next,
               AttentionThreadScratch& scratch) const;
  void MergeSplitPair(const SplitPair& pair, AttentionThreadScratch& scratch) const;

 private:
  // The blocks of a segment that any of these pairs sees.
  struct Tile {
    int num_pairs = 0;
    VisibleRange visible[kMaxTilePairs];
    float max[kMaxTilePairs];
    float sum[kMaxTilePairs];
  };

  VisibleRange PairVisible(const PlannedGroup& planned, int pair) const {
    return Visible(planned.group.position + pair / heads_per_kv_head_, params_.sliding_window);
  }
  // Of the pair's head in q and out.
  size_t Offset(const PlannedGroup& planned, int kv_head, int pair) const {
    const size_t row = planned.group.row_begin + pair / heads_per_kv_head_;
    const size_t head = kv_head * heads_per_kv_head_ + pair % heads_per_kv_head_;
    return (row * params_.num_heads + head) * head_dim_;
  }
  PartialState Partial(const PlannedGroup& planned, int kv_head, int pair, int segment) const {
    const int64_t index = planned.first_partial +
                          (int64_t{kv_head} * planned.num_pairs + pair) * planned.num_segments() +
                          segment - planned.segment_begin;
    float* out = partials_ + index * PartialStride(padded_);
    return {.max = out + padded_, .sum = out + padded_ + 1, .out = out};
  }

  // The K tile that a unit reads first, of a segment.
  const std::byte* FirstTile(const AttentionUnit& unit, int segment) const;
  int FirstSegment(const AttentionUnit& unit) const;
  void AttendSegment(const AttentionUnit& unit, int segment, const std::byte* ahead, Tile& tile,
                     AttentionThreadScratch& scratch) const;
  void KeepPartials(const AttentionUnit& unit, const std::byte* ahead, Tile& tile,
                    AttentionThreadScratch& scratch) const;
  void FinishTile(const AttentionUnit& unit, const std::byte* ahead, Tile& tile,
                  AttentionThreadScratch& scratch) const;

  const AttentionParams& params_;
  const AttentionKernels kernels_;
  const AttentionPlan& plan_;
  float* const partials_;
  const int heads_per_kv_head_;
  const int head_dim_;
  const int padded_;
};

bool SeesSegment(const VisibleRange& visible, int segment) {
  return visible.begin < (segment + 1) * kSegmentTokens && visible.end > segment * kSegmentTokens;
}

int Call::FirstSegment(const AttentionUnit& unit) const {
  return unit.planned->split ? unit.segment
                             : PairVisible(*unit.planned, unit.pair_begin).begin / kSegmentTokens;
}

const std::byte* Call::FirstTile(const AttentionUnit& unit, int segment) const {
  const int begin =
      std::max(PairVisible(*unit.planned, unit.pair_begin).begin, segment * kSegmentTokens);
  return params_.pool.tile(unit.planned->group.block_table[begin / kBlockSize], params_.layer,
                           KvKind::kKey, unit.kv_head);
}

void Call::AttendSegment(const AttentionUnit& unit, int segment, const std::byte* ahead, Tile& tile,
                         AttentionThreadScratch& scratch) const {
  // Ranges grow with the row: the first pair sees farthest back, the last pair farthest ahead.
  const int begin = std::max(tile.visible[0].begin, segment * kSegmentTokens);
  const int end = std::min(tile.visible[tile.num_pairs - 1].end, (segment + 1) * kSegmentTokens);
  kernels_.attend_segment({.pool = &params_.pool,
                           .layer = params_.layer,
                           .kv_head = unit.kv_head,
                           .block_table = unit.planned->group.block_table,
                           .block_begin = begin / kBlockSize,
                           .block_end = (end + kBlockSize - 1) / kBlockSize,
                           .scale = params_.scale,
                           .ahead = ahead,
                           .num_pairs = tile.num_pairs,
                           .visible = tile.visible,
                           .q = scratch.q.get(),
                           .max = tile.max,
                           .sum = tile.sum,
                           .out = scratch.segment.get(),
                           .weighted = scratch.weighted.get(),
                           .padded_value = scratch.padded_value.get(),
                           .amx = scratch.amx.kernels == nullptr ? nullptr : &scratch.amx});
}

void Call::KeepPartials(const AttentionUnit& unit, const std::byte* ahead, Tile& tile,
                        AttentionThreadScratch& scratch) const {
  AttendSegment(unit, unit.segment, ahead, tile, scratch);
  for (int i = 0; i < tile.num_pairs; ++i) {
    const PartialState partial =
        Partial(*unit.planned, unit.kv_head, unit.pair_begin + i, unit.segment);
    std::copy_n(scratch.segment.get() + size_t(i) * padded_, padded_, partial.out);
    *partial.max = tile.max[i];
    *partial.sum = tile.sum[i];
  }
}

void Call::FinishTile(const AttentionUnit& unit, const std::byte* ahead, Tile& tile,
                      AttentionThreadScratch& scratch) const {
  float max[kMaxTilePairs], sum[kMaxTilePairs] = {};
  std::fill_n(max, tile.num_pairs, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.total.get(), size_t(tile.num_pairs) * padded_, 0.0f);
  const int first = FirstSegment(unit);
  const int last = (tile.visible[tile.num_pairs - 1].end - 1) / kSegmentTokens;
  for (int segment = first; segment <= last; ++segment) {
    AttendSegment(unit, segment, segment < last ? FirstTile(unit, segment + 1) : ahead, tile,
                  scratch);
    for (int i = 0; i < tile.num_pairs; ++i) {
      if (!SeesSegment(tile.visible[i], segment)) continue;
      const size_t at = size_t(i) * padded_;
      kernels_.merge_segment({&tile.max[i], &tile.sum[i], scratch.segment.get() + at}, padded_,
                             {&max[i], &sum[i], scratch.total.get() + at});
    }
  }
  for (int i = 0; i < tile.num_pairs; ++i) {
    kernels_.store_result(scratch.total.get() + size_t(i) * padded_, sum[i], params_.pool.layout,
                          params_.out + Offset(*unit.planned, unit.kv_head, unit.pair_begin + i));
  }
}

void Call::RunUnit(const AttentionUnit& unit, const AttentionUnit& next,
                   AttentionThreadScratch& scratch) const {
  const std::byte* ahead = FirstTile(next, FirstSegment(next));
  Tile tile;
  tile.num_pairs = unit.pair_end - unit.pair_begin;
  for (int i = 0; i < tile.num_pairs; ++i) {
    const int pair = unit.pair_begin + i;
    tile.visible[i] = PairVisible(*unit.planned, pair);
    kernels_.load_query(params_.q + Offset(*unit.planned, unit.kv_head, pair), params_.pool.layout,
                        scratch.q.get() + size_t(i) * padded_);
  }
  if (unit.planned->split) {
    KeepPartials(unit, ahead, tile, scratch);
  } else {
    FinishTile(unit, ahead, tile, scratch);
  }
}

void Call::MergeSplitPair(const SplitPair& pair, AttentionThreadScratch& scratch) const {
  const PlannedGroup& planned = *pair.planned;
  const VisibleRange visible = PairVisible(planned, pair.pair);
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  float* total = scratch.total.get();
  std::fill_n(total, padded_, 0.0f);
  for (int segment = planned.segment_begin; segment < planned.segment_end; ++segment) {
    if (!SeesSegment(visible, segment)) continue;
    kernels_.merge_segment(Partial(planned, pair.kv_head, pair.pair, segment), padded_,
                           {&max, &sum, total});
  }
  kernels_.store_result(total, sum, params_.pool.layout,
                        params_.out + Offset(planned, pair.kv_head, pair.pair));
}

void AttentionByRow(const AttentionParams& params, ThreadPool& pool) {
  pool.Parallel([&](int thread) {
    for (const RowGroup& group : params.groups) {
      const int num_pairs = group.num_rows * params.num_heads;
      for (int i = thread; i < num_pairs; i += pool.num_threads()) {
        AttentionRowRef(params, group, i / params.num_heads, i % params.num_heads);
      }
    }
  });
}

}  // namespace

void RunAttention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionParams& params,
                  AttentionScratch& scratch) {
  const int padded = PaddedHeadDim(params.pool.layout.head_dim);
  scratch.plan.Make(params, pool.num_threads());
  scratch.partials.Reserve(scratch.plan.num_partials() * PartialStride(padded));
  scratch.threads.resize(pool.num_threads());
  for (AttentionThreadScratch& thread : scratch.threads) thread.Reserve(padded, kernels.amx);

  const AttentionPlan& plan = scratch.plan;
  const Call call(params, kernels, plan, scratch.partials.get());
  std::atomic<int64_t> next{0};
  pool.Parallel([&](int thread) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < plan.num_units();) {
      // Each of the other threads takes about one unit while this one runs.
      const int64_t likely = std::min(i + pool.num_threads(), plan.num_units() - 1);
      call.RunUnit(plan.unit(i), plan.unit(likely), scratch.threads[thread]);
    }
    scratch.threads[thread].ReleaseTiles();
  });
  const int64_t num_pairs = plan.num_split_pairs();
  if (num_pairs == 0) return;
  pool.Parallel([&](int thread) {
    for (int64_t i = thread; i < num_pairs; i += pool.num_threads()) {
      call.MergeSplitPair(plan.split_pair(i), scratch.threads[thread]);
    }
  });
}

void CpuBackend::Attention(const AttentionParams& params) {
  if (options_.target == Target::kScalar) return AttentionByRow(params, pool_);
  RunAttention(pool_, SelectAttentionKernels(options_.target), params, *attention_scratch_);
}

}  // namespace lynx::cpu
