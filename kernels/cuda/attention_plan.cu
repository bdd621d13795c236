// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/cuda/attention_plan.h"

namespace lynx::cuda {
namespace {

constexpr int kSegmentTokens = kSegmentBlocks * kBlockSize;
constexpr size_t kAlignment = 64;

constexpr int DivideUp(int a, int b) { return (a + b - 1) / b; }
constexpr size_t Aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
size_t ArrayBytes(size_t count) {
  return Aligned(count * sizeof(T));
}

// Rows of one KV head's heads that split groups can have in one step.
int64_t MaxSplitPairs(const AttentionLimits& limits) {
  return int64_t{std::min(limits.max_rows, kMaxSplitRows)} *
         (limits.num_heads / limits.num_kv_heads);
}

}  // namespace

size_t AttentionWorkBytes(const AttentionLimits& limits) {
  const int heads_per_kv_head = limits.num_heads / limits.num_kv_heads;
  // A group has at most one tile that is not full.
  const size_t tiles =
      limits.max_groups + size_t(limits.max_rows) * heads_per_kv_head / kNarrowPairs;
  const size_t segments = DivideUp(limits.max_position, kSegmentTokens);
  const size_t split_tiles = size_t{kMaxSplitRows} * DivideUp(heads_per_kv_head, kNarrowPairs);
  return ArrayBytes<AttentionGroup>(limits.max_groups) +
         ArrayBytes<BlockId>(size_t(limits.max_groups) *
                             DivideUp(limits.max_position, kBlockSize)) +
         2 * ArrayBytes<AttentionUnit>(tiles + split_tiles * segments) +
         ArrayBytes<AttentionMerge>(split_tiles);
}

size_t AttentionScratchBytes(const AttentionLimits& limits) {
  const size_t slots = size_t(MaxSplitPairs(limits)) * limits.num_kv_heads *
                       DivideUp(limits.max_position, kSegmentTokens);
  return slots * (limits.head_dim + 2) * sizeof(float);
}

void AttentionPlan::Make(std::span<const RowGroup> groups, int num_heads, int num_kv_heads,
                         int sliding_window, AttentionPlanOptions options) {
  groups_.clear();
  block_tables_.clear();
  narrow_.clear();
  wide_.clear();
  merges_.clear();
  num_slots_ = 0;
  int rows_left = options.split ? kMaxSplitRows : 0;
  for (const RowGroup& group : groups) {
    if (group.num_rows == 0) continue;
    groups_.push_back({.row_begin = group.row_begin,
                       .num_rows = group.num_rows,
                       .position = group.position,
                       .table_begin = static_cast<int32_t>(block_tables_.size())});
    const int num_blocks = DivideUp(group.position + group.num_rows, kBlockSize);
    block_tables_.insert(block_tables_.end(), group.block_table, group.block_table + num_blocks);
    const bool split = group.num_rows <= rows_left;
    if (split) rows_left -= group.num_rows;
    PlanGroup(static_cast<int>(groups_.size()) - 1, num_heads / num_kv_heads, sliding_window,
              {.wide = options.wide, .split = split});
  }
}

// Tiles come last first: where no row is cut off they have the longest context.
void AttentionPlan::PlanGroup(int index, int heads_per_kv_head, int sliding_window,
                              AttentionPlanOptions options) {
  const AttentionGroup& group = groups_[index];
  const int num_pairs = group.num_rows * heads_per_kv_head;
  const bool is_wide = options.wide && num_pairs > 2 * kNarrowPairs;
  const int tile_pairs = is_wide ? kWidePairs : kNarrowPairs;
  for (int tile = DivideUp(num_pairs, tile_pairs) - 1; tile >= 0; --tile) {
    const int pair_begin = tile * tile_pairs;
    const int pair_end = std::min(pair_begin + tile_pairs, num_pairs);
    const int first = group.position + pair_begin / heads_per_kv_head;
    const int last = group.position + (pair_end - 1) / heads_per_kv_head;
    AttentionUnit unit = {.group = index,
                          .pair_begin = pair_begin,
                          .segment_begin = FirstVisible(first, sliding_window) / kSegmentTokens,
                          .segment_end = last / kSegmentTokens + 1,
                          .partial = -1};
    std::vector<AttentionUnit>& units = is_wide ? wide_ : narrow_;
    const int num_segments = unit.segment_end - unit.segment_begin;
    if (!options.split || num_segments == 1) {
      units.push_back(unit);
      continue;
    }
    merges_.push_back({.group = index,
                       .pair_begin = pair_begin,
                       .num_pairs = pair_end - pair_begin,
                       .partial = num_slots_,
                       .num_segments = num_segments});
    for (int i = 0; i < num_segments; ++i) {
      unit.segment_end = unit.segment_begin + 1;
      unit.partial = num_slots_;
      units.push_back(unit);
      ++unit.segment_begin;
      num_slots_ += pair_end - pair_begin;
    }
  }
}

size_t AttentionPlan::bytes() const {
  return ArrayBytes<AttentionGroup>(groups_.size()) + ArrayBytes<BlockId>(block_tables_.size()) +
         ArrayBytes<AttentionUnit>(narrow_.size()) + ArrayBytes<AttentionUnit>(wide_.size()) +
         ArrayBytes<AttentionMerge>(merges_.size());
}

AttentionWork AttentionPlan::Pack(std::byte* host, std::byte* device) const {
  size_t at = 0;
  const auto put = [&]<typename T>(const std::vector<T>& array) {
    if (!array.empty()) std::memcpy(host + at, array.data(), array.size() * sizeof(T));
    const auto* where = reinterpret_cast<const T*>(device + at);
    at += ArrayBytes<T>(array.size());
    return where;
  };
  AttentionWork work;
  work.groups = put(groups_);
  work.block_tables = put(block_tables_);
  work.narrow = put(narrow_);
  work.wide = put(wide_);
  work.merges = put(merges_);
  work.num_narrow = static_cast<int>(narrow_.size());
  work.num_wide = static_cast<int>(wide_.size());
  work.num_merges = static_cast<int>(merges_.size());
  work.num_slots = num_slots_;
  return work;
}

}  // namespace lynx::cuda
