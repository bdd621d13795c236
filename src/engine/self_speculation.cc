// SPDX-License-Identifier: Apache-2.0
// Self-speculation: a sequence that decodes makes a few drafts on part of its own exact KV, then
// the target judges them in one pass.
//
//   kRunning -> kSelfDrafting   SelfDraftPolicy expects a gain. Each step has one draft row, which
//                               reads a few of the blocks (DraftContext): next to no attention.
//                               Its KV goes where the token's own belongs
//   kSelfDrafting -> kVerifying enough drafts, or nothing may follow the last one. The rows of the
//                               pass overwrite the drafts' KV, as after a hand-off
//   kVerifying -> kRunning      one token more than drafts were right
//
// A draft row that the scheduler leaves out (no block, no budget) ends the drafting, and where the
// last draft could not be judged without another block, that one is dropped: a sequence that runs
// never waits for room for its drafts.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace lynx {

void EngineImpl::StartSelfDrafts(Sequence& s) {
  if (s.state != State::kRunning || s.prefill_only()) return;
  // With d drafts up to d + 1 tokens become final.
  const int room =
      std::min(s.sampling.max_tokens - s.num_output_tokens(), max_model_len_ - s.num_tokens()) - 1;
  const int num_drafts =
      std::min(room, self_draft_policy_.Start(SelfDraftSituationOf(s), s.self_draft_record));
  if (num_drafts <= 0) return;
  ++counters_.num_drafts;
  s.draft_context = ChooseDraftContext(s.tokens, SelfDraftContext());
  s.max_self_drafts = num_drafts;
  s.num_anchored_tokens = s.num_computed_tokens;
  s.state = State::kSelfDrafting;
}

void EngineImpl::UseSelfDraftLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  s.num_anchored_tokens = entry.position + entry.num_rows;
  AddDraft(s, Choose(entry, 0, s.num_output_tokens() + s.num_drafts()));
  ++s.timeline.num_self_drafted;
  ++counters_.self_draft_tokens;
  const int num_read = s.num_tokens() + s.num_drafts() - s.draft_context.num_skipped() * kBlockSize;
  const bool goes_on = s.num_drafts() < s.max_self_drafts && HasRoomForDraft(s) &&
                       self_draft_policy_.Continue(DraftingSituation(s, num_read),
                                                   s.self_draft_record, s.draft_margins);
  if (!goes_on) EndSelfDrafts(s);
}

// What was drafted is judged in the next step.
void EngineImpl::EndSelfDrafts(Sequence& s) {
  if (s.drafts.empty()) s.max_self_drafts = 0;
  s.state = s.drafts.empty() ? State::kRunning : State::kVerifying;
}

// True when there were any: they have other rows to ask for.
bool EngineImpl::EndUnscheduledSelfDrafts() {
  bool any = false;
  for (const Owned& s : seated_) {
    const bool runs = std::exchange(s->has_self_draft_row, false);
    if (s->state != State::kSelfDrafting || runs) continue;
    const int end = s->num_tokens() + s->num_drafts();
    const bool lacks_block = BlocksFor(end) > static_cast<int>(s->block_table.size());
    if (lacks_block && !s->drafts.empty()) DropLastDraft(*s);
    EndSelfDrafts(*s);
    any = true;
  }
  return any;
}

void EngineImpl::DropLastDraft(Sequence& s) {
  s.counts.RemoveOutput(s.drafts.back());
  s.drafts.pop_back();
  s.draft_margins.pop_back();
  s.draft_ns.pop_back();
  if (s.num_shown_drafts <= s.num_drafts()) return;
  --s.num_shown_drafts;
  ++Output(s).num_revoked_drafts;
}

void EngineImpl::ObserveSelfDrafts(Sequence& s, int num_judged, int num_accepted) {
  self_draft_policy_.ObserveJudged(SelfDraftSituationOf(s), s.num_drafts(),
                                   std::span(s.draft_margins).first(num_judged), num_accepted,
                                   s.self_draft_record);
  s.timeline.num_self_accepted += num_accepted;
  counters_.self_accepted_tokens += num_accepted;
}

// Of so many tokens, how many the last one attends to.
int EngineImpl::NumAttended(int num_tokens) const {
  const int window = model_.config().sliding_window;
  return window > 0 ? std::min(num_tokens, window) : num_tokens;
}

DraftContextOptions EngineImpl::SelfDraftContext() const {
  // With a sliding window there is no first block to see.
  return {.num_first_blocks = model_.config().sliding_window > 0 ? 0 : 1,
          .num_recent_blocks = BlocksFor(options_.draft_context_tokens)};
}

// Before drafts are made, or of those that have been judged.
SelfDraftSituation EngineImpl::SelfDraftSituationOf(const Sequence& s) const {
  return DraftingSituation(s, SelfDraftContext().max_tokens());
}

// num_draft_tokens: that a draft row reads, if there are so many.
SelfDraftSituation EngineImpl::DraftingSituation(const Sequence& s, int num_draft_tokens) const {
  const int num_tokens = s.num_tokens() + s.num_drafts();
  return {.num_sequences = std::max(1, num_decoding_),
          .num_attended = NumAttended(num_tokens),
          .num_draft_attended = NumAttended(std::min(num_tokens, num_draft_tokens)),
          .with_prompts = prompts_wait_};
}

// A step without prompt rows took `ns`.
void EngineImpl::ObserveWork(int64_t ns) {
  StepWork work;
  for (const BatchEntry& e : batch_.entries()) {
    work.Add(e.num_rows, NumAttended(e.position + e.num_rows - e.num_skipped_tokens()));
  }
  self_draft_policy_.ObserveStep(work, ns);
}

}  // namespace lynx
