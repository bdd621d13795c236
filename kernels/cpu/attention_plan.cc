// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_plan.h"

#include <algorithm>

namespace lynx::cpu {

void AttentionPlan::Make(const AttentionParams& params, int num_threads) {
  // Fewer units than this per thread would leave some threads idle for long at the end.
  constexpr int kMinUnitsPerThread = 4;
  num_kv_heads_ = params.pool.layout.num_kv_heads;
  const int heads_per_kv_head = params.num_heads / num_kv_heads_;
  num_units_ = num_split_pairs_ = num_partials_ = 0;
  groups_.clear();
  for (const RowGroup& group : params.groups) {
    if (group.num_rows == 0) continue;
    PlannedGroup planned = {.group = group};
    const int last = group.position + group.num_rows - 1;
    planned.num_pairs = group.num_rows * heads_per_kv_head;
    planned.num_tiles = (planned.num_pairs + kMaxTilePairs - 1) / kMaxTilePairs;
    planned.segment_begin = Visible(group.position, params.sliding_window).begin / kSegmentTokens;
    planned.segment_end = last / kSegmentTokens + 1;
    const int64_t num_tiles = int64_t{num_kv_heads_} * planned.num_tiles;
    planned.split = num_threads > 1 && planned.num_segments() > 1 &&
                    num_tiles < int64_t{kMinUnitsPerThread} * num_threads;
    planned.first_unit = num_units_;
    planned.first_pair = num_split_pairs_;
    planned.first_partial = num_partials_;
    num_units_ += num_tiles * (planned.split ? planned.num_segments() : 1);
    if (planned.split) {
      const int64_t num_pairs = int64_t{num_kv_heads_} * planned.num_pairs;
      num_split_pairs_ += num_pairs;
      num_partials_ += num_pairs * planned.num_segments();
    }
    groups_.push_back(planned);
  }
}

AttentionUnit AttentionPlan::unit(int64_t index) const {
  const auto next = std::upper_bound(
      groups_.begin(), groups_.end(), index,
      [](int64_t i, const PlannedGroup& planned) { return i < planned.first_unit; });
  const PlannedGroup& planned = *(next - 1);
  int64_t i = index - planned.first_unit;
  AttentionUnit unit = {.planned = &planned};
  if (planned.split) {
    unit.segment = planned.segment_begin + static_cast<int>(i % planned.num_segments());
    i /= planned.num_segments();
  }
  unit.kv_head = static_cast<int>(i % num_kv_heads_);
  const int tile = planned.num_tiles - 1 - static_cast<int>(i / num_kv_heads_);
  unit.pair_begin = tile * kMaxTilePairs;
  unit.pair_end = std::min(unit.pair_begin + kMaxTilePairs, planned.num_pairs);
  return unit;
}

SplitPair AttentionPlan::split_pair(int64_t index) const {
  // Groups that are not split hold no pairs: the last one that begins at or before index is it.
  const auto next = std::upper_bound(
      groups_.begin(), groups_.end(), index,
      [](int64_t i, const PlannedGroup& planned) { return i < planned.first_pair; });
  auto planned = next - 1;
  while (!planned->split) --planned;
  const int i = static_cast<int>(index - planned->first_pair);
  return {.planned = &*planned, .kv_head = i / planned->num_pairs, .pair = i % planned->num_pairs};
}

}  // namespace lynx::cpu
