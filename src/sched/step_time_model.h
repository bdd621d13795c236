// SPDX-License-Identifier: Apache-2.0
// How long a step takes, learnt from the steps that were run, so that prompt rows can be measured
// out in time.
//
//   ns = base + per_row * rows + per_pair * pairs
//
// rows: the prompt rows of the step; pairs: for each of them, the tokens that it attends to; base:
// everything else that runs. Steps without prompt rows teach base. A step with them spreads its
// error over the three terms by the squares of their sizes (a normalized LMS in their logarithms),
// with base, which is better known, counting a tenth: what is expected at the present depth and
// chunk is right after a few steps, at once where it was too little.
//
// Few rows may be nearly free where a step is bound by reading weights, so cost per row learnt from
// them says nothing about many. RowsWithin therefore at most doubles what was measured of late.
#pragma once

#include <cstdint>

namespace lynx {

// The prompt rows of a step.
struct PromptWork {
  int num_rows = 0;
  double num_pairs = 0;
  // Adds rows whose first one stands at `position`.
  void Add(int position, int rows);
};

class StepTimeModel {
 public:
  // So many rows may be tried whatever is known of fewer.
  static constexpr int kFirstRows = 16;

  // A step with this work took `ns`, decodes and all.
  void Observe(const PromptWork& work, int64_t ns);

  double base_ns() const { return base_ns_; }
  // Of `num_rows` prompt rows from `position` on.
  double PromptNs(int position, int num_rows) const;
  // The most prompt rows from `position` on that take no more than `ns`; 0 when there are none.
  int RowsWithin(double ns, int position) const;
  // At most this many are known to go as predicted, at least kFirstRows.
  int max_known_rows() const;

 private:
  void Start(const PromptWork& work, double ns);

  double base_ns_ = 0;
  double row_ns_ = 0;
  double pair_ns_ = 0;
  int measured_rows_ = 0;  // the most of late
};

}  // namespace lynx
