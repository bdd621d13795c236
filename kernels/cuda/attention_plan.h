// SPDX-License-Identifier: Apache-2.0
// How one step's attention is cut into CTAs. Host only; no device is needed.
//
// The *pairs* of a group and KV head, (row, head of the KV head) by (row, head), are cut into tiles
// of 16 (narrow: one mma row tile, the few rows of decoding) or 64 (wide: prefill, verifying many
// drafts). A unit is one CTA per KV head: a tile over all of its segments, or, for the first
// kMaxSplitRows rows of a step whose context has more than one segment, over one segment; then the
// segments' states lie in scratch and a merge joins them in order. All of this gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lynx/backend.h"

namespace lynx::cuda {

inline constexpr int kSegmentBlocks = 8;  // as on the CPU (kernels/cpu/attention.h)
inline constexpr int kNarrowPairs = 16;
inline constexpr int kWidePairs = 64;
inline constexpr int kMaxSplitRows = 64;

// The first position that a row sees; the last is its own. sliding_window 0 = none.
constexpr int FirstVisible(int position, int sliding_window) {
  return sliding_window > 0 && position >= sliding_window ? position - sliding_window + 1 : 0;
}

// RowGroup with its block table at block_tables[table_begin].
struct AttentionGroup {
  int32_t row_begin = 0;
  int32_t num_rows = 0;
  int32_t position = 0;
  int32_t table_begin = 0;
};

struct AttentionUnit {
  int32_t group = 0;
  int32_t pair_begin = 0;  // in the group
  int32_t segment_begin = 0;
  int32_t segment_end = 0;
  int32_t partial = 0;  // first scratch slot per KV head, or -1: the unit writes the result
};

// A tile whose segments wait in slots partial + segment · num_pairs + pair.
struct AttentionMerge {
  int32_t group = 0;
  int32_t pair_begin = 0;
  int32_t num_pairs = 0;
  int32_t partial = 0;
  int32_t num_segments = 0;
};

// A plan in device memory.
struct AttentionWork {
  const AttentionGroup* groups = nullptr;
  const BlockId* block_tables = nullptr;
  const AttentionUnit* narrow = nullptr;
  const AttentionUnit* wide = nullptr;
  const AttentionMerge* merges = nullptr;
  int num_narrow = 0;
  int num_wide = 0;
  int num_merges = 0;
  int64_t num_slots = 0;  // of scratch, per KV head
};

struct AttentionLimits {
  int max_rows = 0;
  int max_groups = 0;
  int max_position = 0;  // exclusive
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

// Bytes that a packed plan, and the states of split segments, can need.
size_t AttentionWorkBytes(const AttentionLimits& limits);
size_t AttentionScratchBytes(const AttentionLimits& limits);

struct AttentionPlanOptions {
  bool wide = true;   // false: narrow tiles only, as PlaneAttention wants them
  bool split = true;  // false: no unit is split (for tests)
};

class AttentionPlan {
 public:
  // Plans a step; valid for every layer. The groups' block tables are copied. sliding_window: the
  // largest of any layer, 0 if some layer has none.
  void Make(std::span<const RowGroup> groups, int num_heads, int num_kv_heads, int sliding_window,
            AttentionPlanOptions options = {});

  size_t bytes() const;
  // Writes bytes() bytes to host; the result points to where the caller copies them. Both 64-byte
  // aligned.
  AttentionWork Pack(std::byte* host, std::byte* device) const;

  std::span<const AttentionGroup> groups() const { return groups_; }
  std::span<const AttentionUnit> narrow() const { return narrow_; }
  std::span<const AttentionUnit> wide() const { return wide_; }
  std::span<const AttentionMerge> merges() const { return merges_; }
  int64_t num_slots() const { return num_slots_; }  // per KV head

 private:
  void PlanGroup(int index, int heads_per_kv_head, int sliding_window,
                 AttentionPlanOptions options);

  std::vector<AttentionGroup> groups_;
  std::vector<BlockId> block_tables_;
  std::vector<AttentionUnit> narrow_;
  std::vector<AttentionUnit> wide_;
  std::vector<AttentionMerge> merges_;
  int32_t num_slots_ = 0;
};

}  // namespace lynx::cuda
