// SPDX-License-Identifier: Apache-2.0
#include "engine/step_batch.h"

#include "sampling/sampler.h"

namespace lynx {

void StepBatch::Clear() {
  tokens_.clear();
  positions_.clear();
  groups_.clear();
  logit_rows_.clear();
  entries_.clear();
}

void StepBatch::Add(Sequence& s, int position, int num_rows, int num_logits,
                    const DraftContext* context) {
  const int row_begin = this->num_rows();
  for (int p = position; p < position + num_rows; ++p) {
    const int draft = p - s.num_tokens();
    tokens_.push_back(draft < 0 ? s.tokens[p] : s.drafts[draft]);
    positions_.push_back(p);
  }
  entries_.push_back({.sequence = &s,
                      .position = position,
                      .num_rows = num_rows,
                      .first_logit = static_cast<int>(logit_rows_.size()),
                      .num_logits = num_logits,
                      .context = context});
  for (int r = row_begin + num_rows - num_logits; r < row_begin + num_rows; ++r) {
    logit_rows_.push_back(r);
  }
}

// A group of rows that skip blocks is that of a shorter sequence: keys carry their positions, so
// attention needs to know no more than their order.
void StepBatch::AddGroup(const BatchEntry& e, int row_begin) {
  const std::vector<BlockId>& blocks = e.sequence->block_table;
  const BlockId* table = blocks.data();
  if (e.context != nullptr) {
    std::vector<BlockId>& part = parts_.emplace_back();
    for (int block : e.context->blocks) part.push_back(blocks[block]);
    part.insert(part.end(), blocks.begin() + e.context->recent, blocks.end());
    table = part.data();
  }
  groups_.push_back({.row_begin = row_begin,
                     .num_rows = e.num_rows,
                     .position = e.position - e.num_skipped_tokens(),
                     .block_table = table});
}

ForwardBatch StepBatch::View(bool chooses_tokens) {
  groups_.clear();
  parts_.clear();
  choices_.clear();
  int row_begin = 0;
  for (const BatchEntry& e : entries_) {
    AddGroup(e, row_begin);
    row_begin += e.num_rows;
    if (!chooses_tokens) continue;
    const Sequence& s = *e.sequence;
    for (int i = 0; i < e.num_logits; ++i) {
      const auto choice = ChoiceOnDevice(s.sampling, s.counts, e.chosen_position(i));
      choices_.push_back(choice && !s.prompt_logprobs_wanted ? *choice : RowChoice{});
    }
  }
  return {.tokens = tokens_,
          .positions = positions_,
          .groups = groups_,
          .logit_rows = logit_rows_,
          .choices = choices_};
}

}  // namespace lynx
