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
    case State::kVerifying: {
      // Rows before the last final token's only bring their KV up to date.
      const int num_before = std::min(num_rows, s.num_tokens() - 1 - s.num_computed_tokens);
      batch_.Add(s, s.num_computed_tokens, num_rows, num_rows - num_before);
      break;
    }
    case State::kDrafting: {
      const bool last = s.num_anchored_tokens + num_rows == s.num_tokens() + s.num_drafts();
      batch_.Add(s, s.num_anchored_tokens, num_rows, last ? 1 : 0);
      break;
    }
    case State::kSelfDrafting:
      batch_.Add(s, s.num_anchored_tokens, num_rows, 1, &s.draft_context);
      s.has_self_draft_row = true;
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
  const int64_t begin_ns = Now();
  PromptWork prompt;
  for (const BatchEntry& entry : batch_.entries()) {
    if (entry.sequence->state == State::kPrefilling) prompt.Add(entry.position, entry.num_rows);
  }
  model_.Forward(batch_.View(model_.chooses_tokens()), kv_cache_->view(), logits_.get(),
                 after_layer_);
  CountRows(batch_.num_rows());
  ObserveStep(prompt.num_rows > 0, Now() - begin_ns);
  if (prompt.num_rows == 0) ObserveWork(Now() - begin_ns);
  for (const BatchEntry& entry : batch_.entries()) UseLogits(entry);
  scheduler_.Observe(prompt, Now() - begin_ns);
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
    case State::kSelfDrafting:
      UseSelfDraftLogits(entry);
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
  if (s.prefill_only() && s.state == State::kPrefilling) {
    FinishPrefillJob(s, std::move(token));
    return;
  }
  s.state = s.prefill_only() ? StateBetweenRounds(s) : State::kRunning;
  AddVerified(s, std::move(token));
  self_draft_policy_.ObservePlain(SelfDraftSituationOf(s), s.self_draft_record);
  StartSelfDrafts(s);
}

void EngineImpl::UseDraftLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  s.num_anchored_tokens = entry.position + entry.num_rows;
  if (entry.num_logits == 0) return;
  const Choice choice = Choose(entry, 0, s.num_output_tokens() + s.num_drafts());
  if (s.timeline.at(Event::kFirstDraft) == 0) ++counters_.num_drafts;
  s.timeline.Mark(Event::kFirstDraft, Now());
  ++s.timeline.num_drafted;
  AddDraft(s, choice);
  StartRound(s);
  PauseDrafting(s);
}

// Unless another draft is worth a row.
void EngineImpl::PauseDrafting(Sequence& s) {
  const bool enough = !MayDraft(s);
  s.drafting_paused = enough || SourceKeepsUp(*s.attempt);
  if (enough && !s.attempt->round_open) PromoteOnce(s);
}

void EngineImpl::AddDraft(Sequence& s, const Choice& choice) {
  ++counters_.draft_tokens;
  s.drafts.push_back(choice.token);
  s.draft_margins.push_back(choice.margin);
  s.draft_ns.push_back(Now());
  s.counts.AddOutput(choice.token);
  s.drafts_counted = true;
  if (!s.show_drafts) return;
  Output(s).drafts.push_back(choice.token);
  ++s.num_shown_drafts;
}

// Whether another draft is worth a row.
bool EngineImpl::MayDraft(const Sequence& s) const {
  return s.drafts.empty() || (HasRoomForDraft(s) && draft_policy_.Continue(s.draft_margins));
}

// Whether something may follow the last draft.
bool EngineImpl::HasRoomForDraft(const Sequence& s) const {
  // The row that judges the last draft stands at this position.
  const int last_position = s.num_tokens() - 1 + s.num_drafts();
  return last_position + 1 < max_model_len_ &&
         s.num_output_tokens() + s.num_drafts() < s.sampling.max_tokens &&
         !Contains(s.sampling.stop_token_ids, s.drafts.back());
}

void EngineImpl::UseVerifyLogits(const BatchEntry& entry) {
  Sequence& s = *entry.sequence;
  if (entry.num_logits == 0) {
    s.num_computed_tokens += entry.num_rows;
    RegisterBlocks(s);
    return;
  }
  UncountDrafts(s);
  const Acceptance acceptance =
      AcceptDrafts(s.drafts, entry.num_logits, [&](int row) -> TargetChoice {
        s.num_computed_tokens = s.num_tokens();
        RegisterBlocks(s);
        TokenOutput token = ChooseToken(entry, row);
        const TokenId id = token.id;
        const bool drafted = row < s.num_drafts() && s.drafts[row] == id;
        AddVerified(s, std::move(token), drafted ? s.draft_ns[row] : 0);
        return {.token = id, .ends_sequence = s.state == State::kFinished};
      });
  const int accepted = acceptance.num_accepted;
  if (!s.prefill_only()) {
    if (s.max_self_drafts == 0) s.timeline.Mark(Event::kVerified, Now());
    ObserveJudged(s, std::min(acceptance.num_chosen, s.num_drafts()), accepted);
  }
  RemoveDrafts(s, accepted);
  const bool ended = s.state == State::kFinished;
  const bool in_pieces = !ended && acceptance.num_chosen == accepted && !s.drafts.empty();
  if (in_pieces) return;
  DropDrafts(s);
  if (s.prefill_only()) {
    AnswerRound(s);
  } else if (!ended) {
    s.state = State::kRunning;
    StartSelfDrafts(s);
  }
}

// The first num_judged drafts were compared with the target's choices.
void EngineImpl::ObserveJudged(Sequence& s, int num_judged, int num_accepted) {
  CountAccepted(s, num_accepted);
  if (s.max_self_drafts > 0) {
    ObserveSelfDrafts(s, num_judged, num_accepted);
    return;
  }
  draft_policy_.Observe(std::span(s.draft_margins).first(num_judged), num_accepted);
  if (s.anchor >= 0) anchor_policy_.Observe(s.anchor, num_judged, num_accepted);
  s.timeline.num_accepted += num_accepted;
}

// The first `count`, which have become final.
void EngineImpl::RemoveDrafts(Sequence& s, int count) {
  s.drafts.erase(s.drafts.begin(), s.drafts.begin() + count);
  s.draft_margins.erase(s.draft_margins.begin(), s.draft_margins.begin() + count);
  s.draft_ns.erase(s.draft_ns.begin(), s.draft_ns.begin() + count);
  s.num_shown_drafts = std::max(0, s.num_shown_drafts - count);
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

// A final token: published in this step, and judged for the end of the sequence. drafted_ns: when
// it was drafted, 0 = it was not.
void EngineImpl::AddVerified(Sequence& s, TokenOutput token, int64_t drafted_ns) {
  if (s.prefill_only()) {
    AddReported(s, std::move(token));
    return;
  }
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
  s.timeline.provisional_ns.push_back(drafted_ns != 0 ? drafted_ns : now);
  s.tokens.push_back(id);
  s.counts.AddOutput(id);
  ++counters_.generation_tokens;
  fair_share_.ChargeOutput(s.client, 1);
  const FinishReason reason = EndedBy(s);
  if (reason == FinishReason::kNone) return;
  const bool is_eos = Contains(model_.config().eos_ids, id);
  if (reason == FinishReason::kStop && !is_eos) output.stop_token = id;
  FinishRequest(s, reason);
}

// Whether the last token ends the sequence, and why.
FinishReason EngineImpl::EndedBy(const Sequence& s) const {
  if (Contains(s.sampling.stop_token_ids, s.tokens.back())) return FinishReason::kStop;
  const bool is_full =
      s.num_output_tokens() >= s.sampling.max_tokens || s.num_tokens() >= max_model_len_;
  return is_full ? FinishReason::kLength : FinishReason::kNone;
}

void EngineImpl::CountDrafts(Sequence& s) {
  for (TokenId t : s.drafts) s.counts.AddOutput(t);
  s.drafts_counted = true;
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
  s.draft_ns.clear();
  s.drafting_paused = false;
  s.num_accepted_drafts = 0;
  s.max_self_drafts = 0;
  if (s.num_shown_drafts > 0) Output(s).num_revoked_drafts += std::exchange(s.num_shown_drafts, 0);
}

}  // namespace lynx
