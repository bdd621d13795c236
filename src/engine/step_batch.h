// SPDX-License-Identifier: Apache-2.0
// The ragged batch of one step: rows of several sequences and which of their logits are wanted.
#pragma once

#include <span>
#include <vector>

#include "engine/sequence.h"
#include "model/model.h"

namespace lynx {

// Rows of one sequence: tokens (and drafts) from `position` on.
struct BatchEntry {
  Sequence* sequence = nullptr;
  int position = 0;
  int num_rows = 0;
  int first_logit = 0;                    // index into the logits of its first wanted row
  int num_logits = 0;                     // wanted rows; they are the last ones of the entry
  const DraftContext* context = nullptr;  // of the sequence; null: rows read all of its blocks
  int num_skipped_tokens() const { return context ? context->num_skipped() * kBlockSize : 0; }

  // Of the token that its i-th wanted row chooses.
  int chosen_position(int i) const { return position + num_rows - num_logits + i + 1; }
};

// Buffers are kept between steps.
class StepBatch {
 public:
  void Clear();
  // Adds rows; num_logits of the last ones want logits. context: of the sequence, and unchanged
  // until Clear; the rows stand in its recent blocks.
  void Add(Sequence& sequence, int position, int num_rows, int num_logits,
           const DraftContext* context = nullptr);

  bool empty() const { return entries_.empty(); }
  int num_rows() const { return static_cast<int>(tokens_.size()); }
  std::span<const BatchEntry> entries() const { return entries_; }
  // Valid until the next Add or Clear, and while no sequence in it changes its block table.
  // chooses_tokens: the model chooses tokens where it can.
  ForwardBatch View(bool chooses_tokens);
  // What the model has chosen from the entry's i-th wanted row; null: it gave the logits.
  const Choice* choice(const BatchEntry& entry, int i) const {
    const size_t logit = entry.first_logit + i;
    return logit < choices_.size() && choices_[logit].wanted ? &choices_[logit].choice : nullptr;
  }

 private:
  void AddGroup(const BatchEntry& entry, int row_begin);

  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<RowGroup> groups_;
  std::vector<std::vector<BlockId>> parts_;  // block tables of entries that skip blocks
  std::vector<int32_t> logit_rows_;
  std::vector<RowChoice> choices_;  // [logit_rows], or empty
  std::vector<BatchEntry> entries_;
};

}  // namespace lynx
