// SPDX-License-Identifier: Apache-2.0
// How one call of attention is cut into units of work for the threads.
//
// The pairs of a group and KV head, (row, head) by (row, head), are cut into tiles of
// kMaxTilePairs. A unit is a tile over all of its segments, or, where a group has too few tiles to
// keep every thread busy (decoding, verifying), over one segment; such a group is *split* and its
// segments are merged, in order, once all units are done. Both give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/attention_segment.h"
#include "lynx/backend.h"

namespace lynx::cpu {

struct PlannedGroup {
  RowGroup group;
  int num_pairs = 0;      // per KV head
  int num_tiles = 0;      // per KV head
  int segment_begin = 0;  // [segment_begin, segment_end) hold every position seen by any row
  int segment_end = 0;
  bool split = false;
  int64_t first_unit = 0;
  int64_t first_pair = 0;     // among the pairs of split groups, all KV heads
  int64_t first_partial = 0;  // [KV head][pair][segment], when split
  int num_segments() const { return segment_end - segment_begin; }
};

struct AttentionUnit {
  const PlannedGroup* planned = nullptr;
  int kv_head = 0;
  int pair_begin = 0;  // of the group
  int pair_end = 0;
  int segment = 0;  // when split
};

// A pair of a split group, whose segments wait to be merged.
struct SplitPair {
  const PlannedGroup* planned = nullptr;
  int kv_head = 0;
  int pair = 0;
};

class AttentionPlan {
 public:
  // Plans params for this many threads. params' groups are copied, its arrays are not.
  void Make(const AttentionParams& params, int num_threads);

  int64_t num_units() const { return num_units_; }
  int64_t num_split_pairs() const { return num_split_pairs_; }
  int64_t num_partials() const { return num_partials_; }

  // Units of a group come longest first, so that threads that take them in order end together.
  AttentionUnit unit(int64_t index) const;
  SplitPair split_pair(int64_t index) const;

 private:
  int num_kv_heads_ = 0;
  int64_t num_units_ = 0;
  int64_t num_split_pairs_ = 0;
  int64_t num_partials_ = 0;
  std::vector<PlannedGroup> groups_;
};

}  // namespace lynx::cpu
