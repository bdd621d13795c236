// SPDX-License-Identifier: Apache-2.0
// From the waiting queue to blocks and a seat, and back.
#include <algorithm>
#include <tuple>

#include "engine/engine_impl.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSecond = 1'000'000'000;
// A step looks at no more waiting sequences than this for which there is no room.
constexpr int kMaxLeftOut = 64;

// Leading tokens that two sequences share.
int CommonPrefix(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  return static_cast<int>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

// Tokens after the present ones that need room before decoding proper: drafts and the row that
// judges the last of them.
int EngineImpl::DraftWindow(const Sequence& s) const {
  if (!options_.speculation) return 1;
  const int remaining =
      std::min(s.sampling.max_tokens - s.num_output_tokens(), max_model_len_ - s.num_tokens());
  return 1 + std::clamp(remaining, 0, options_.max_draft_tokens);
}

EngineImpl::Admission EngineImpl::PlanAdmission(const Sequence& s) const {
  Admission a;
  const int num_tokens = s.num_tokens();
  const bool use_cache = options_.enable_prefix_caching && !s.prompt_logprobs_wanted;
  const int num_full = num_tokens / kBlockSize;
  if (use_cache) a.match = prefix_cache_.Match(s.tokens, s.cache_salt, num_full);
  // Computed here, at least one row must run, for its logits.
  const int local_hit = std::min<int>(a.match.blocks.size(), (num_tokens - 1) / kBlockSize);
  a.remote =
      remote_ != nullptr && num_tokens - local_hit * kBlockSize > options_.max_local_prefill_length;
  if (!a.remote && local_hit < static_cast<int>(a.match.blocks.size())) {
    a.match = prefix_cache_.Match(s.tokens, s.cache_salt, local_hit);
  }
  const int window = s.prefill_only() ? 0 : a.remote ? DraftWindow(s) : 1;
  a.num_blocks = std::min(BlocksFor(num_tokens + window), options_.num_kv_blocks);
  a.num_from_pool = a.num_blocks;
  for (BlockId b : a.match.blocks) a.num_from_pool -= b >= 0 && pool_.owned(b) ? 1 : 0;
  return a;
}

void EngineImpl::AdmitWaiting() {
  counters_.num_deferred = 0;
  if (waiting_.empty()) return;
  UpdateRemoteDeadlines();
  FailOverdue();
  OrderWaiting(0);
  bool admitted_any = false;
  int num_left_out = 0;
  for (size_t i = 0; i < waiting_.size() && num_left_out < kMaxLeftOut; ++i) {
    Sequence& s = *waiting_[i];
    if (s.state != State::kWaiting || scheduler_.num_free_seats() <= 0) continue;
    const Verdict verdict = TryAdmit(s);
    num_left_out += verdict == Verdict::kNoRoom ? 1 : 0;
    counters_.num_deferred += verdict == Verdict::kDeferred ? 1 : 0;
    if (verdict != Verdict::kAdmitted) continue;
    admitted_any = true;
    for (size_t j = 0; j < i; ++j) ++waiting_[j]->times_passed;
    OrderWaiting(i + 1);
  }
  if (!admitted_any) return;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if ((*it)->state == State::kWaiting || (*it)->state == State::kFinished) {
      ++it;
      continue;
    }
    fair_share_.Dequeue((*it)->client);
    seated_.push_back(std::move(*it));
    it = waiting_.erase(it);
  }
}

// The order of service of those from `begin` on.
void EngineImpl::OrderWaiting(size_t begin) {
  for (size_t i = begin; i < waiting_.size(); ++i) {
    Sequence& s = *waiting_[i];
    s.client_served = options_.fair_share ? fair_share_.counter(s.client) : 0;
  }
  std::sort(waiting_.begin() + static_cast<ptrdiff_t>(begin), waiting_.end(),
            [](const Owned& a, const Owned& b) {
              return std::tie(a->priority, a->client_served, a->number) <
                     std::tie(b->priority, b->client_served, b->number);
            });
}

bool EngineImpl::Overdue(const Sequence& s) const {
  return options_.queue_timeout_s > 0 &&
         Now() - s.queued_ns >= options_.queue_timeout_s * kNsPerSecond;
}

std::string EngineImpl::OverdueMessage() const {
  return absl::StrCat("waited ", options_.queue_timeout_s, " s in the queue");
}

// Whose turn has not come in time. One that was admitted before stays. The decode side starts a
// refused job again, elsewhere if it can.
void EngineImpl::FailOverdue() {
  for (const Owned& s : waiting_) {
    if (s->state != State::kWaiting || s->timeline.at(Event::kScheduled) != 0 || !Overdue(*s)) {
      continue;
    }
    ++counters_.queue_timeouts;
    if (s->prefill_only()) {
      FailPrefillJob(*s, absl::ResourceExhaustedError(OverdueMessage()));
    } else {
      FailRequest(*s, absl::DeadlineExceededError(OverdueMessage()));
    }
  }
}

EngineImpl::Verdict EngineImpl::TryAdmit(Sequence& s) {
  const Admission admission = PlanAdmission(s);
  const bool without_prefill = admission.remote && s.remote_deadline_ns != 0;
  if (without_prefill && Now() >= s.remote_deadline_ns) {
    FailRequest(s, absl::UnavailableError(absl::StrCat("no prefill daemon was usable for ",
                                                       options_.remote_wait_ms, " ms")));
    return Verdict::kNoRoom;
  }
  const bool too_early = admission.remote && Now() < s.next_attempt_ns;
  if (without_prefill || too_early || WaitsForEqualPrefix(s, admission)) return Verdict::kDeferred;
  if (!scheduler_.Admit(admission.num_from_pool, s.times_passed)) return Verdict::kNoRoom;
  // What others share of a preempted sequence's blocks has not become free.
  if (admission.num_from_pool > pool_.counts().available()) return Verdict::kNoRoom;
  if (UnpacksFirst(admission)) return Verdict::kNoRoom;  // its room is kept for it in this step
  if (!TakeBlocks(s, admission)) {
    ReleaseBlocks(s);
    return Verdict::kNoRoom;
  }
  StartAdmitted(s, admission.remote);
  return Verdict::kAdmitted;
}

// While no prefill daemon is usable, who needs one waits a bounded time.
void EngineImpl::UpdateRemoteDeadlines() {
  if (remote_ == nullptr) return;
  const bool available = remote_->available();
  const int64_t deadline = Now() + options_.remote_wait_ms * kNsPerMs;
  for (const Owned& s : waiting_) {
    if (available || s->remote_deadline_ns == 0) s->remote_deadline_ns = available ? 0 : deadline;
  }
}

// Another sequence is just getting the KV of most of what the cache lacks: n samples of one prompt
// are prefilled (and handed over) once. A short common start is not worth the wait.
bool EngineImpl::WaitsForEqualPrefix(const Sequence& s, const Admission& admission) const {
  if (!options_.enable_prefix_caching || s.prompt_logprobs_wanted) return false;
  const int useful = (s.num_tokens() - 1) / kBlockSize;
  const int hit = static_cast<int>(admission.match.blocks.size());
  const auto is_computing = [&](const Owned& other) {
    const bool computing = other->state == State::kPrefilling || other->state == State::kLoading ||
                           other->state == State::kDrafting;
    if (!computing || !other->exact || other->cache_salt != s.cache_salt) return false;
    const int common = CommonPrefix(s.tokens, other->tokens) / kBlockSize;
    return std::min(common, useful) > hit && 2 * (std::min(common, useful) - hit) >= useful - hit;
  };
  return std::any_of(seated_.begin(), seated_.end(), is_computing) ||
         std::any_of(waiting_.begin(), waiting_.end(), is_computing);
}

// False when the pool does not have them after all.
bool EngineImpl::TakeBlocks(Sequence& s, const Admission& admission) {
  PrefixMatch taken = prefix_cache_.Take(admission.match);
  s.block_table = std::move(taken.blocks);
  s.prefix = taken.last;
  s.num_known_blocks = static_cast<int>(s.block_table.size());
  s.num_computed_tokens = s.num_known_blocks * kBlockSize;
  s.num_cached_tokens = s.num_computed_tokens;
  return AllocateBlocks(s, admission.num_blocks - s.num_known_blocks);
}

void EngineImpl::StartAdmitted(Sequence& s, bool remote) {
  const int64_t now = Now();
  const bool first_time = s.timeline.at(Event::kScheduled) == 0;
  s.timeline.Mark(Event::kScheduled, now);
  s.timeline.Mark(Event::kPrefillStarted, now);
  s.remote_deadline_ns = 0;
  const int wanted = s.num_tokens() - s.num_computed_tokens;
  if (first_time) {
    counters_.prompt_tokens += s.num_tokens();
    fair_share_.ChargePrompt(s.client, wanted);
  }
  counters_.prompt_tokens_cached += s.num_computed_tokens;
  counters_.prefix_queries += s.num_tokens();
  counters_.prefix_hits += s.num_computed_tokens;
  if (remote) {
    ++counters_.remote_prefills;
    StartAttempt(s);
    return;
  }
  if (remote_ != nullptr) ++counters_.local_prefills;
  s.state = State::kPrefilling;
  if (s.prefill_only() && !StartSending(s)) return;
  const int rows = scheduler_.AdmittedRows(s.num_computed_tokens, wanted);
  if (rows > 0) AddRows(s, rows);
}

// False, with nothing taken, when the pool cannot give that many.
bool EngineImpl::AllocateBlocks(Sequence& s, int count) {
  const size_t before = s.block_table.size();
  for (int i = 0; i < count; ++i) {
    const auto block = pool_.Allocate();
    if (!block) {
      while (s.block_table.size() > before) {
        pool_.ReleaseRequest(s.block_table.back());
        s.block_table.pop_back();
      }
      return false;
    }
    s.block_table.push_back(*block);
  }
  return true;
}

// Last first, so that the cache forgets the ends of prompts before their beginnings.
void EngineImpl::ReleaseBlocks(Sequence& s) {
  for (auto b = s.block_table.rbegin(); b != s.block_table.rend(); ++b) pool_.ReleaseRequest(*b);
  s.block_table.clear();
  s.prefix = 0;
  s.num_known_blocks = 0;
  s.num_computed_tokens = 0;
}

// Back to the queue: everything but the final tokens is given up.
void EngineImpl::Requeue(Sequence& s) {
  DropDrafts(s);
  AbandonAttempt(s);
  ReleaseBlocks(s);
  s.exact = true;
  s.prompt_logprobs.clear();
  s.state = State::kWaiting;
}

// Enters newly full exact blocks into the prefix cache.
void EngineImpl::RegisterBlocks(Sequence& s) {
  if (!options_.enable_prefix_caching || !s.exact) return;
  for (int i = s.num_known_blocks; (i + 1) * kBlockSize <= s.num_computed_tokens; ++i) {
    const auto tokens = std::span(s.tokens).subspan(size_t(i) * kBlockSize, kBlockSize);
    s.prefix = prefix_cache_.Insert(s.prefix, tokens, s.cache_salt, s.block_table[i]);
    s.num_known_blocks = i + 1;
  }
}

}  // namespace lynx
