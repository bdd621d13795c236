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

void StepBatch::Add(Sequence& s, int position, int num_rows, int num_logits) {
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
                      .num_logits = num_logits});
  for (int r = row_begin + num_rows - num_logits; r < row_begin + num_rows; ++r) {
    logit_rows_.push_back(r);
  }
}

ForwardBatch StepBatch::View(bool chooses_tokens) {
  groups_.clear();
  choices_.clear();
  int row_begin = 0;
  for (const BatchEntry& e : entries_) {
    groups_.push_back({.row_begin = row_begin,
                       .num_rows = e.num_rows,
                       .position = e.position,
                       .block_table = e.sequence->block_table.data()});
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
