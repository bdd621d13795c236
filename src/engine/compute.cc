// SPDX-License-Identifier: Apache-2.0
// The batch of a step and what follows from its logits.
#include <algorithm>

#include "engine/engine_impl.h"
#include "speculation/acceptance.h"

namespace lynx {
namespace {

// Prompt log-probabilities need the logits of every row; this bounds their memory.
constexpr int kMaxPromptLogprobRows = 64;

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void EngineImpl::AddRows(Sequence& s, int num_rows) {
  switch (s.state) {
    case State::kVerifying:
      batch_.Add(s, s.num_tokens() - 1, num_rows, num_rows);
      break;
    case State::kDrafting:
      batch_.Add(s, s.num_tokens() - 1 + s.num_drafts(), 1, 1);
      break;
    default: {
      if (s.prompt_logprobs_wanted) num_rows = std::min(num_rows, kMaxPromptLogprobRows);
      const bool last = s.num_computed_tokens + num_rows == s.num_tokens();
      const int num_logits = s.prompt_logprobs_wanted ? num_rows : last ? 1 : 0;
      batch_.Add(s, s.num_computed_tokens, num_rows, num_logits);
    }
  }
}

void EngineImpl::RunBatch() {
  model_.Forward(batch_.View(model_.chooses_tokens()), kv_cache_->view(), logits_.get(),
                 after_layer_);
  CountRows(batch_.num_rows());
  for (const BatchEntry& entry : batch_.entries()) UseLogits(entry);
}

void EngineImpl::UseLogits(const BatchEntry& entry) {
  switch (entry.sequence->state) {
    case State::kPrefilling:
    case State::kRunning:
      UsePrefillLogits(entry);
      break;
    case State::kVerifying:
      UseVerifyLogits(entry);
      break;
    case State::kDrafting:
      UseDraftLogits(entry);
      break;
    default:
      break;
  }
}

std::span<const float> EngineImpl::LogitsOf(const BatchEntry& entry, int i) const {
  return {logits_.get() + size_t(entry.first_logit + i) * vocab_size_,
          static_cast<size_t>(vocab_size_)};
}

// A prefill chunk; a decode step is a chunk of one row.
void EngineImpl::UsePrefillLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  if (s.state == State::kPrefilling) counters_.prompt_tokens_computed += entry.num_rows;
  s.num_computed_tokens += entry.num_rows;
  RegisterBlocks(s);
  if (s.prompt_logprobs_wanted) TakePromptLogprobs(entry);
  if (s.num_computed_tokens < s.num_tokens()) return;
  TokenOutput token = ChooseToken(entry, entry.num_logits - 1);
  if (s.prefill_only()) {
    FinishPrefillJob(s, std::move(token));
    return;
  }
  s.state = State::kRunning;
  AddVerified(s, std::move(token));
}

void EngineImpl::UseDraftLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  const Choice choice = Choose(entry, 0, s.num_output_tokens() + s.num_drafts());
  if (s.timeline.at(Event::kFirstDraft) == 0) ++counters_.num_drafts;
  s.timeline.Mark(Event::kFirstDraft, Now());
  ++s.timeline.num_drafted;
  ++counters_.draft_tokens;
  s.drafts.push_back(choice.token);
  s.draft_margins.push_back(choice.margin);
  s.counts.AddOutput(choice.token);
  s.drafts_counted = true;
  if (s.show_drafts) {
    Output(s).drafts.push_back(choice.token);
    ++s.num_shown_drafts;
  }
  // The row that judges the last draft stands at this position.
  const int last_position = s.num_tokens() - 1 + s.num_drafts();
  const bool has_room = last_position < static_cast<int>(s.block_table.size()) * kBlockSize &&
                        last_position + 1 < max_model_len_ &&
                        s.num_output_tokens() + s.num_drafts() < s.sampling.max_tokens;
  if (!has_room || Contains(s.sampling.stop_token_ids, choice.token) ||
      !draft_policy_.Continue(s.draft_margins)) {
    s.drafting_paused = true;
    PromoteOnce(s);
  }
}

void EngineImpl::UseVerifyLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  UncountDrafts(s);
  const Acceptance acceptance =
      AcceptDrafts(s.drafts, entry.num_rows, [&](int row) -> TargetChoice {
        s.num_computed_tokens = s.num_tokens();
        RegisterBlocks(s);
        AddVerified(s, ChooseToken(entry, row));
        return {.token = s.tokens.back(), .ends_sequence = s.state == State::kFinished};
      });
  const int accepted = acceptance.num_accepted;
  const int num_judged = std::min(acceptance.num_chosen, s.num_drafts());
  draft_policy_.Observe(std::span(s.draft_margins).first(num_judged), accepted);
  s.timeline.Mark(Event::kVerified, Now());
  s.timeline.num_accepted += accepted;
  CountAccepted(s, accepted);
  s.drafts.erase(s.drafts.begin(), s.drafts.begin() + accepted);
  s.draft_margins.erase(s.draft_margins.begin(), s.draft_margins.begin() + accepted);
  s.num_shown_drafts = std::max(0, s.num_shown_drafts - accepted);
  const bool ended = s.state == State::kFinished;
  const bool in_pieces = !ended && acceptance.num_chosen == accepted && !s.drafts.empty();
  if (in_pieces) return;
  DropDrafts(s);
  if (!ended) s.state = State::kRunning;
}

// Row i of the entry says what follows its position; the logits of the last prompt position belong
// to the first output token.
void EngineImpl::TakePromptLogprobs(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  if (s.prompt_logprobs.empty()) s.prompt_logprobs.push_back(std::nullopt);
  for (int i = 0; i < entry.num_rows; ++i) {
    const int next = entry.position + i + 1;
    if (next >= s.num_prompt_tokens) break;
    s.prompt_logprobs.push_back(
        Logprobs(LogitsOf(entry, i), s.tokens[next], s.sampling.num_prompt_logprobs));
  }
}

// From the i-th wanted row of the entry.
Choice EngineImpl::Choose(const BatchEntry& entry, int i, int num_output_tokens) {
  if (const Choice* choice = batch_.choice(entry, i)) return *choice;
  const Sequence& s = *entry.sequence;
  return sampler_.Choose({.logits = LogitsOf(entry, i),
                          .params = s.sampling,
                          .counts = s.counts,
                          .num_output_tokens = num_output_tokens},
                         entry.chosen_position(i));
}

TokenOutput EngineImpl::ChooseToken(const BatchEntry& entry, int i) {
  const Sequence& s = *entry.sequence;
  const Choice choice = Choose(entry, i, s.num_output_tokens());
  if (s.sampling.num_logprobs < 0) {
    TokenOutput out;
    out.id = choice.token;
    return out;
  }
  return Logprobs(LogitsOf(entry, i), choice.token, s.sampling.num_logprobs);
}

// A final token: published in this step, and judged for the end of the sequence.
void EngineImpl::AddVerified(Sequence& s, TokenOutput token) {
  const int64_t now = Now();
  const TokenId id = token.id;
  EngineOutput& output = Output(s);
  if (s.timeline.token_ns.empty()) output.num_cached_tokens = s.num_cached_tokens;
  if (s.prompt_logprobs_wanted) {
    output.prompt_logprobs = std::move(s.prompt_logprobs);
    s.prompt_logprobs.clear();
    s.prompt_logprobs_wanted = false;
  }
  output.tokens.push_back(std::move(token));
  s.timeline.Mark(Event::kFirstToken, now);
  s.timeline.token_ns.push_back(now);
  s.tokens.push_back(id);
  s.counts.AddOutput(id);
  ++counters_.generation_tokens;
  if (Contains(s.sampling.stop_token_ids, id)) {
    if (!Contains(model_.config().eos_ids, id)) output.stop_token = id;
    FinishRequest(s, FinishReason::kStop);
  } else if (s.num_output_tokens() >= s.sampling.max_tokens || s.num_tokens() >= max_model_len_) {
    FinishRequest(s, FinishReason::kLength);
  }
}

void EngineImpl::UncountDrafts(Sequence& s) {
  if (!s.drafts_counted) return;
  for (TokenId t : s.drafts) s.counts.RemoveOutput(t);
  s.drafts_counted = false;
}

void EngineImpl::DropDrafts(Sequence& s) {
  UncountDrafts(s);
  s.drafts.clear();
  s.draft_margins.clear();
  s.drafting_paused = false;
  s.num_accepted_drafts = 0;
  if (s.num_shown_drafts > 0) Output(s).num_revoked_drafts += std::exchange(s.num_shown_drafts, 0);
}

}  // namespace lynx
