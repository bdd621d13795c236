// SPDX-License-Identifier: Apache-2.0
// Certainty before the target KV is on the decode side (verify: source, hold, auto). The prefill
// side has the exact KV of the prompt; it computes what follows token 1 as the decode side will,
// bit for bit, so its word is final.
//
// Prefill side, after token 1, until the transfer is over or the text has ended:
//   1. the job takes a copy of the last block, which the transfer may still be reading, and runs
//      token 1, which gives token 2. At most max_num_seqs jobs do so, and their rows are at most
//      half of a step's; others tell with token 1 that they will not
//   2. kHold: it goes on, a row per step. kAuto: it does while no prompt waits; while one does,
//      for a few jobs, until drafts come; and where the transfer is as good as over when token 1
//      is out the job ends there. kSource: it waits
//   3. a round of drafts comes: one row group of the last token and the drafts; the accepted ones
//      and one more go up. Rounds that come while a step runs wait for its end: the last counts
// Decode side: drafts on the anchor as always, sends them back when no round is open or the open
// one has become twice as long, publishes what comes, and goes on drafting after it. Drafts that
// are hardly worth a row are not sent. While the prefill side goes on by itself (kAuto) nothing is
// drafted unless its steps are longer than those here, and drafts are only sent where they are well
// ahead of it. Where its answers come slowly the target is pulled with the anchors, as for a
// sequence that is stalled. When the target has landed, the KV of what was published meanwhile is
// computed again in the pass that judges the drafts left over.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

// Drafts ahead of a prefill side that goes on by itself, below which it gains nothing by them: a
// step of several rows takes longer there than one of one. Where drafts are often wrong, one is
// dropped before there are so many.
constexpr int kLeastLead = 8;

// Steps of a prefill side that goes on by itself, in steps here, up to which no draft gets that far
// ahead of it in good time.
constexpr double kLeastSlowness = 1.5;

// Of a step with prompts, answers that go on by themselves take at most one part in so many.
constexpr int64_t kLeastPromptRatio = 8;

// Tokens in the time of a step, below which the prefill side is no substitute for the target.
constexpr double kLeastPace = 0.5;

}  // namespace

// ---- decode side --------------------------------------------------------------------------------

// What this attempt asks of the prefill side.
VerifyMode EngineImpl::ChooseVerify(Sequence& s) {
  if (!options_.exact_handoff || options_.resident == Resident::k8Bit) {
    return VerifyMode::kResidual;
  }
  const bool drafts = options_.speculation && options_.max_draft_tokens > 0;
  switch (s.verify) {
    case VerifyMode::kSource:
      return drafts ? VerifyMode::kSource : VerifyMode::kResidual;
    case VerifyMode::kAuto: {
      const int64_t residual_ns =
          verify_policy_.ResidualNs(s.num_tokens() - s.num_computed_tokens, 0, 0);
      const int64_t source_ns = verify_policy_.SourceNs();
      s.timeline.estimated_residual_ns = residual_ns;
      s.timeline.estimated_source_ns = source_ns;
      return VerifyPolicy::AskSource(residual_ns, source_ns) ? VerifyMode::kSource
                                                             : VerifyMode::kResidual;
    }
    default:
      return s.verify;
  }
}

// Sends the drafts to the prefill side, unless that is not worth it. While a round is open there it
// may be waiting for a long step to end; a longer one then takes its place.
void EngineImpl::StartRound(Sequence& s) {
  HandoffAttempt& a = *s.attempt;
  if (a.verify != VerifyMode::kSource || a.target_landed || s.drafts.empty()) return;
  const int num_drafts = std::max(1, NumWorthJudging(s));  // an answer has a token more
  if (a.source_goes_on && num_drafts < kLeastLead) return;
  if (a.round_open) {
    if (num_drafts < 2 * a.round_num_drafts) return;
  } else {
    if (s.verify == VerifyMode::kAuto && !WorthARound(s)) return;
    a.round_open = true;
    a.round_sent_ns = Now();
  }
  a.round_num_drafts = num_drafts;
  ++a.round;
  ++s.timeline.num_verify_rounds;
  ++counters_.source_rounds;
  remote_->Verify({.attempt = a.id,
                   .round = a.round,
                   .position = s.num_tokens(),
                   .drafts = {s.drafts.begin(), s.drafts.begin() + num_drafts}});
}

// Whether what the prefill side says by itself comes as fast as drafts would.
bool EngineImpl::SourceKeepsUp(const HandoffAttempt& a) const {
  return a.source_goes_on && a.source_step_ns > 0 &&
         static_cast<double>(a.source_step_ns) <=
             kLeastSlowness * static_cast<double>(answer_step_ns_);
}

// Of the drafts, by what a row takes here. Beside the rows of prompts it takes next to nothing.
int EngineImpl::NumWorthJudging(const Sequence& s) const {
  const SelfDraftSituation now = DraftingSituation(s, /*num_draft_tokens=*/0);
  const double row_cost = now.with_prompts ? 0 : self_draft_policy_.RowCost(now);
  return draft_policy_.NumWorthJudging(s.draft_margins, row_cost);
}

// A busy prefill side answers so seldom that even right drafts become final at less than half of
// the pace that the target brings: then the sooner that is here, the better.
void EngineImpl::PromoteIfSlow(Sequence& s) {
  const HandoffAttempt& a = *s.attempt;
  if (a.verify != VerifyMode::kSource || a.source_goes_on || !a.anchor_landed) return;
  if (s.anchor < 0 || answer_step_ns_ == 0) return;
  const auto step_ns = static_cast<double>(answer_step_ns_);
  const double tokens_per_step =
      step_ns * RoundRate(static_cast<double>(verify_policy_.SourceNs()), step_ns,
                          options_.max_draft_tokens, anchor_policy_.Error(s.anchor));
  if (tokens_per_step < kLeastPace) PromoteOnce(s);
}

// kAuto: whether the answer will be here before the target.
bool EngineImpl::WorthARound(Sequence& s) {
  const HandoffAttempt& a = *s.attempt;
  const int64_t since_ns = std::max<int64_t>(0, Now() - a.anchor_landed_ns);
  const int64_t residual_ns =
      verify_policy_.ResidualNs(a.num_tokens - s.num_computed_tokens, a.anchor_bytes, since_ns);
  return VerifyPolicy::AskSource(residual_ns, verify_policy_.SourceNs());
}

absl::Status EngineImpl::CheckReport(const Sequence& s, const RemotePrefillEvent& report) const {
  if (report.verified.empty()) return absl::OkStatus();
  if (report.position != s.num_tokens()) {
    return absl::DataLossError(absl::StrCat("the prefill daemon reports position ", report.position,
                                            " of an answer that is at ", s.num_tokens()));
  }
  for (const TokenOutput& t : report.verified) {
    if (t.id >= 0 && t.id < vocab_size_) continue;
    return absl::DataLossError(
        absl::StrCat("token ", t.id, " is not in the vocabulary of ", vocab_size_));
  }
  return absl::OkStatus();
}

// The prefill side has said that it will not vouch for what follows: the target is waited for.
void EngineImpl::ForgoVerification(HandoffAttempt& attempt) {
  if (std::exchange(attempt.verify, VerifyMode::kResidual) == VerifyMode::kResidual) return;
  ++counters_.source_refusals;
}

// What follows token 1, as the prefill side says.
void EngineImpl::UseReport(Sequence& s, RemotePrefillEvent& report) {
  if (const absl::Status status = CheckReport(s, report); !status.ok()) {
    OnAttemptFailed(s, status);
    return;
  }
  HandoffAttempt& a = *s.attempt;
  verify_policy_.ObserveStep(report.step_ns);
  if (report.round_over && a.round_open) {
    a.round_open = report.round != a.round;
    verify_policy_.ObserveRound(Now() - a.round_sent_ns, report.step_ns);
    a.round_sent_ns = Now();
  }
  a.source_goes_on = report.goes_on;
  a.source_step_ns = report.step_ns;
  if (report.cannot_verify) ForgoVerification(a);
  AcceptFromSource(s, report.verified);
  if (s.state == State::kFinished) return;
  if (report.cannot_verify) ContinueHandoff(s);
  StartRound(s);
  if (s.state != State::kDrafting) return;
  PromoteIfSlow(s);
  PauseDrafting(s);
}

// Final tokens, which may agree with the drafts. Those left after the last of them stay.
void EngineImpl::AcceptFromSource(Sequence& s, std::vector<TokenOutput>& tokens) {
  if (tokens.empty()) return;
  s.timeline.Mark(Event::kSourceVerified, Now());
  UncountDrafts(s);
  int accepted = 0;
  bool wrong = false;
  for (TokenOutput& token : tokens) {
    const bool judged = !wrong && accepted < s.num_drafts();
    const bool right = judged && s.drafts[accepted] == token.id;
    wrong = wrong || (judged && !right);
    // A draft's KV may be where this token's belongs.
    if (wrong) s.num_anchored_tokens = std::min(s.num_anchored_tokens, s.num_tokens());
    ++s.timeline.num_source_tokens;
    ++counters_.source_tokens;
    AddVerified(s, std::move(token), right ? s.draft_ns[accepted] : 0);
    accepted += right ? 1 : 0;
    if (s.state == State::kFinished) break;
  }
  ObserveJudged(s, accepted + (wrong ? 1 : 0), accepted);
  if (wrong && s.attempt) s.attempt->round_num_drafts = 0;  // what is open there is of no use
  RemoveDrafts(s, accepted);
  if (wrong || s.state == State::kFinished) {
    DropDrafts(s);
  } else {
    CountDrafts(s);
  }
}

// ---- prefill side -------------------------------------------------------------------------------

RemotePrefillEvent& EngineImpl::Report(Sequence& s) {
  if (!s.output_pending) {
    s.output_pending = true;
    published_.push_back(&s);
    s.report.attempt = s.job.attempt;
    s.report.step_ns = StepNs();
  }
  return s.report;
}

// After token 1: false when nothing is to follow, or nothing can.
bool EngineImpl::KeepForVerification(Sequence& s, TokenId first_token) {
  if (s.job.verify == VerifyMode::kResidual || !pins_.Holds(s.job.attempt)) return false;
  if (s.job.verify == VerifyMode::kAuto && TransferEndsFirst(s)) return false;
  s.tokens.push_back(first_token);
  s.counts.AddOutput(first_token);
  if (EndedBy(s) != FinishReason::kNone) return false;
  const auto num_answering = std::count_if(seated_.begin(), seated_.end(),
                                           [](const Owned& other) { return other->answering(); });
  if (num_answering >= options_.max_num_seqs || !OwnLastBlock(s)) {
    ++counters_.source_refusals;
    return false;
  }
  s.state = State::kRunning;
  return true;
}

// The block that the answer goes on in: if the prompt ends inside of one, a copy of that, which is
// still being sent. False when there is no room.
bool EngineImpl::OwnLastBlock(Sequence& s) {
  if (s.num_computed_tokens % kBlockSize == 0) return GrowBlocks(s, s.num_tokens());
  const BlockId sent = s.block_table.back();  // pinned
  pool_.ReleaseRequest(sent);
  s.block_table.pop_back();
  if (!GrowBlocks(s, s.num_tokens())) return false;
  kv_cache_->CopyBlock(sent, s.block_table.back());
  return true;
}

// Before token 2 could be computed.
bool EngineImpl::TransferEndsFirst(const Sequence& s) const {
  const std::optional<int64_t> left_ns = sender_->LeftNs(s.job.attempt);
  return left_ns && *left_ns < scheduler_.StepNs(s.num_tokens(), 1);
}

// Makes room for the rows of so many tokens. False, with nothing taken, when there is none.
bool EngineImpl::GrowBlocks(Sequence& s, int num_tokens) {
  const int missing = BlocksFor(num_tokens) - static_cast<int>(s.block_table.size());
  return num_tokens <= max_model_len_ && AllocateBlocks(s, std::max(0, missing));
}

// A round. Only what cannot be answered is refused: the decode side then waits for the target.
void EngineImpl::Apply(const VerifyRequest& request) {
  const auto refusal = [&] {
    RemotePrefillEvent event;
    event.attempt = request.attempt;
    event.round = request.round;
    event.round_over = event.cannot_verify = true;
    return event;
  };
  const auto it = by_attempt_.find(request.attempt);
  if (it == by_attempt_.end()) {
    const auto sending = sending_.find(request.attempt);
    if (sending != sending_.end()) sending->second(refusal());
    return;
  }
  Sequence& s = *it->second;
  const bool is_sane = request.position > s.num_prompt_tokens + s.job.num_emitted &&
                       request.position <= s.num_tokens() && !request.drafts.empty() &&
                       CheckTokens(request.drafts).ok();
  if (!s.answering() || !is_sane) {
    s.prefill_sink(refusal());
    return;
  }
  ++counters_.source_rounds;
  s.round = request.round;
  // Some of them may have been answered while they were on their way.
  std::span<const TokenId> drafts = request.drafts;
  for (int p = request.position; p < s.num_tokens() && !drafts.empty(); ++p) {
    drafts = drafts.front() == s.tokens[p] ? drafts.subspan(1) : std::span<const TokenId>();
  }
  const size_t longest = std::max(0, max_model_len_ - s.num_tokens());
  StartJudging(s, drafts.first(std::min(drafts.size(), longest)));
}

// The rows run in the next step; a round that waits for them has another's place taken.
void EngineImpl::StartJudging(Sequence& s, std::span<const TokenId> drafts) {
  const bool has_room =
      !drafts.empty() && GrowBlocks(s, s.num_tokens() + static_cast<int>(drafts.size()));
  if (s.state == State::kVerifying && !has_room) return;  // what waits is answered
  if (drafts.empty()) {
    EndRound(s);
  } else if (!has_room) {
    EndRound(s);
    s.report.cannot_verify = true;
    ++counters_.source_refusals;
  } else {
    s.drafts.assign(drafts.begin(), drafts.end());
    s.draft_margins.assign(drafts.size(), 0);
    s.draft_ns.assign(drafts.size(), 0);
    s.state = State::kVerifying;
  }
}

void EngineImpl::AddReported(Sequence& s, TokenOutput token) {
  RemotePrefillEvent& report = Report(s);
  if (report.verified.empty()) report.position = s.num_tokens();
  s.tokens.push_back(token.id);
  s.counts.AddOutput(token.id);
  ++counters_.source_tokens;
  report.verified.push_back(std::move(token));
  if (EndedBy(s) != FinishReason::kNone) {
    LeaveToTransfer(s);
  } else if (s.state == State::kRunning && !GrowBlocks(s, s.num_tokens())) {
    report.cannot_verify = true;
    LeaveToTransfer(s);
  }
}

void EngineImpl::EndRound(Sequence& s) {
  Report(s).round_over = true;
  s.report.round = s.round;
}

// The rows of a round have run.
void EngineImpl::AnswerRound(Sequence& s) {
  EndRound(s);
  if (s.state == State::kFinished) return;
  s.state = StateBetweenRounds(s);
  if (s.state == State::kRunning && !GrowBlocks(s, s.num_tokens())) s.state = State::kHolding;
}

State EngineImpl::StateBetweenRounds(const Sequence& s) const {
  return s.job.verify == VerifyMode::kSource ? State::kHolding : State::kRunning;
}

// kAuto: an idle prefill daemon goes on by itself; a busy one gives token 2 and goes on until
// drafts come, which bring more tokens for each of its long steps, with the jobs that were first
// here.
bool EngineImpl::MayGoOn(const Sequence& s) const {
  const bool has_gone_on = s.num_tokens() > s.num_prompt_tokens + s.job.num_emitted + 1;
  if (s.job.verify != VerifyMode::kAuto || !prompts_wait_ || !has_gone_on) return true;
  if (s.round > 0) return false;
  const int64_t most =
      answer_step_ns_ > 0 ? prompt_step_ns_ / (kLeastPromptRatio * answer_step_ns_) : 0;
  const auto num_before = std::count_if(seated_.begin(), seated_.end(), [&](const Owned& other) {
    return other->answering() && other->job.verify == VerifyMode::kAuto && other->round == 0 &&
           other->number < s.number;
  });
  return num_before < std::max<int64_t>(1, most);
}

// Whether more reports will come without a round, as things are.
bool EngineImpl::GoesOn(const Sequence& s) const {
  return s.job.verify == VerifyMode::kAuto && s.state == State::kRunning && !prompts_wait_;
}

bool EngineImpl::AnyPrompt() const {
  return std::any_of(seated_.begin(), seated_.end(),
                     [](const Owned& s) { return s->state == State::kPrefilling; });
}

// What a step takes while things stay as they are.
int64_t EngineImpl::StepNs() const {
  return AnyPrompt() && prompt_step_ns_ > 0 ? prompt_step_ns_ : answer_step_ns_;
}

}  // namespace lynx
