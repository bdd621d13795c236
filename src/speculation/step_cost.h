// SPDX-License-Identifier: Apache-2.0
// How long a step without prompt rows takes, learnt from the steps that were run.
//
//   ns = base + per_row * rows + per_read * reads + per_pair * pairs + per_later_pair * later_pairs
//
// The terms are the weights, the work on each row, the KV that is read from memory, the attention
// that is computed, and what it takes more where a sequence has many rows: the second row of one is
// nearly hidden behind its reads, the later ones are not. They are fitted by recursive least
// squares on relative errors, in which a step that something else has held up counts little; the
// terms may drift, so old steps are forgotten where newer ones say something about the same term.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace lynx {

// The rows of a step.
struct StepWork {
  double rows = 0;
  double reads = 0;        // tokens whose KV is read, once for all rows of a sequence
  double pairs = 0;        // (row, token that it attends to)
  double later_pairs = 0;  // of them: of rows after a sequence's second
  // Rows of one sequence, each of which attends to about so many tokens.
  void Add(int num_rows, int num_attended) {
    rows += num_rows;
    reads += num_attended;
    pairs += double{1} * num_rows * num_attended;
    later_pairs += double{1} * std::max(0, num_rows - 2) * num_attended;
  }
};

class StepCost {
 public:
  void Observe(const StepWork& work, int64_t ns);

  // 0 before the first step. `share`: of the base.
  double Ns(const StepWork& work, double share = 1) const;

 private:
  static constexpr int kTerms = 5;
  using Terms = std::array<double, kTerms>;
  static Terms TermsOf(const StepWork& work, double share);

  double unit_ns_ = 0;  // of the coefficients: the first step's time
  Terms coefficient_ = {};
  std::array<Terms, kTerms> covariance_ = {};
};

}  // namespace lynx
