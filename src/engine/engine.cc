// SPDX-License-Identifier: Apache-2.0
// The life of a request in the engine.
//
//   1. kWaiting      in order of (priority, what its client has got so far, arrival). Admitted when
//                    a seat is free and blocks cover all its tokens and the draft window; the
//                    longest cached prefix is attached, what is packed of it decoded (resident.cc).
//   2. kPrefilling   colocated, prefill jobs, and short or mostly cached prompts of the decode
//                    role: chunks of its tokens run; the last row's logits give the next token.
//   3. kLoading      decode role: a fresh attempt has been started on a prefill daemon. Token 1
//                    comes from there, is final and is published at once, wherever the KV is.
//   4. kDrafting     the anchor has landed and token 1 is known: one draft row per step, until the
//                    draft policy, a stop token or a length limit pauses it. What lands while
//                    nothing is drafted is refined meanwhile.
//   3' kLoading      the target has landed: the blocks are left alone while the rest is refined.
//   5. kVerifying    refined: one row group of the last final token and all drafts; the longest
//                    prefix that equals the target's own choices becomes final, plus one token.
//                    The rows overwrite the drafts' KV. Without drafts this state is skipped.
//   6. kRunning      one row per step, until a stop token, a length limit or a cancel. Where that
//                    pays, kSelfDrafting and 5 come in between: self_speculation.cc.
//   7. kFinished     published, its blocks given back. What a transfer still touches stays owned by
//                    the transfer until its terminal event.
//
// A prefill job goes 1, 2; its token 1 is reported at once and the transfer, which was begun before
// the first chunk and is fed after each layer of each chunk, holds the blocks until it ends. If it
// is to vouch for what follows, the job stays until then, too: kRunning, kHolding and kVerifying,
// see source_verify.cc. Final tokens may so reach the decode side in 3 and 4.
//
// From 2, 5 and 6 a sequence may be preempted, and from 3 and 4 its attempt may fail: it then gives
// up its blocks and its drafts and waits again, with its final tokens as a longer prompt. Tokens
// and noise depend on seed and position only, so it goes on with the very tokens it would have had.
#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <new>

#include "core/clock.h"
#include "engine/engine_impl.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

// How long an idle loop sleeps at most: for ever, or until it looks again whether what nobody
// announces (a prefill daemon becoming usable, a deadline) has happened.
constexpr int64_t kIdleNs = 1'000'000'000;
constexpr int64_t kRetryNs = 20'000'000;
constexpr int64_t kNsPerMs = 1'000'000;
// KV memory beyond what was ever used that is made ready after a rest of kIdleNs, so neither while
// a cluster starts nor in short gaps between requests.
constexpr int64_t kPreparedBytes = int64_t{256} << 20;

absl::Status CheckOptions(const EngineOptions& o, const Engine::Peers& peers) {
  const auto bad = [](const char* name, int64_t value, int64_t least) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine: ", name, ": ", value, " is less than ", least));
  };
  if (o.max_num_seqs < 1) return bad("max_num_seqs", o.max_num_seqs, 1);
  if (o.max_num_batched_tokens < 1) {
    return bad("max_num_batched_tokens", o.max_num_batched_tokens, 1);
  }
  if (o.max_draft_tokens < 0) return bad("max_draft_tokens", o.max_draft_tokens, 0);
  if (o.role == Role::kPrefill && !peers.make_sender) {
    return absl::InvalidArgumentError("engine: the prefill role needs a sender");
  }
  if (o.role == Role::kDecode && (!peers.make_receiver || peers.remote == nullptr)) {
    return absl::InvalidArgumentError("engine: the decode role needs a receiver and a remote");
  }
  return absl::OkStatus();
}

EngineOptions Completed(EngineOptions o) {
  if (!o.clock_ns) o.clock_ns = MonotonicNs;
  return o;
}

int MaxModelLen(const EngineOptions& o, const ModelConfig& config) {
  int64_t length =
      config.max_model_len > 0 ? config.max_model_len : std::numeric_limits<int>::max();
  if (o.max_model_len > 0) length = std::min<int64_t>(length, o.max_model_len);
  return static_cast<int>(std::min<int64_t>(length, int64_t{o.num_kv_blocks} * kBlockSize));
}

// Makes tokens step by step, on the target.
bool Decodes(const std::unique_ptr<Sequence>& s) {
  return s->state == State::kRunning || s->state == State::kVerifying ||
         s->state == State::kSelfDrafting;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options, Model& model,
                                                       Peers peers) {
  LYNX_RETURN_IF_ERROR(CheckOptions(options, peers));
  EngineMemory memory;
  LYNX_ASSIGN_OR_RETURN(
      memory.kv_cache, KvCache::Create(model.backends(), model.kv_layout(), options.num_kv_blocks));
  if (options.enable_prefix_caching && options.resident != Resident::kBf16) {
    const int num_planes = options.resident == Resident::kExact ? kNumPlanes : kExactPlane;
    LYNX_ASSIGN_OR_RETURN(memory.packer,
                          BlockPacker::Create(model.backend(), memory.kv_cache->view(), num_planes,
                                              Completed(options).clock_ns));
  }
  const size_t num_logits = size_t(options.max_num_batched_tokens) * model.config().vocab_size;
  // Not initialized: pages that no step needs are never touched.
  memory.logits.reset(new (std::nothrow) float[num_logits]);
  if (memory.logits == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("engine: max_num_batched_tokens: ", options.max_num_batched_tokens,
                     ": no memory for as many rows of ", model.config().vocab_size, " logits"));
  }
  return std::make_unique<EngineImpl>(options, model, std::move(memory), std::move(peers));
}

EngineImpl::EngineImpl(const EngineOptions& options, Model& model, EngineMemory memory, Peers peers)
    : options_(Completed(options)),
      model_(model),
      vocab_size_(model.config().vocab_size),
      max_model_len_(MaxModelLen(options, model.config())),
      kv_cache_(std::move(memory.kv_cache)),
      packer_(std::move(memory.packer)),
      pool_(options.num_kv_blocks),
      prefix_cache_(pool_, packer_.get(), kv_cache_->view()),
      pins_(pool_),
      scheduler_({.max_num_seqs = options.max_num_seqs,
                  .max_num_batched_tokens = options.max_num_batched_tokens,
                  .step_target_ns =
                      options.role == Role::kPrefill ? 0 : options.itl_target_ms * kNsPerMs}),
      draft_policy_(options.max_draft_tokens, options.min_draft_survival),
      anchor_policy_(options.anchors),
      self_draft_policy_(options.speculation ? options.num_speculative_tokens : 0),
      sampler_(vocab_size_),
      remote_(options.role == Role::kDecode ? peers.remote : nullptr),
      receiver_address_(std::move(peers.receiver_address)),
      logits_(std::move(memory.logits)) {
  const auto wake = [inbox = inbox_] { inbox->Wake(); };
  if (options_.role == Role::kPrefill) sender_ = peers.make_sender(kv_cache_->view(), wake);
  if (options_.role == Role::kDecode) receiver_ = peers.make_receiver(kv_cache_->view(), wake);
  if (sender_ != nullptr) after_layer_ = [this](int layer) { AfterLayer(layer); };
  counters_.last_progress_ns = Now();
  UpdateStats(false);
}

EngineImpl::~EngineImpl() {
  inbox_->Close();
  if (remote_ == nullptr) return;
  for (const auto& [attempt, sequence] : by_attempt_) remote_->Cancel(attempt);
}

// ---- the loop -----------------------------------------------------------------------------------

bool EngineImpl::Step() {
  // First what has landed: then a prefill daemon that is gone no longer matters.
  bool progress = PollReceiver();
  progress |= ApplyCommands();
  progress |= PollSender();
  progress |= Schedule();
  AdmitWaiting();
  progress |= Publish();  // what the batch, which may be long, does not change
  if (!batch_.empty()) {
    RunBatch();
    progress = true;
  }
  progress |= PackAhead();
  progress |= Publish();
  RemoveFinished();
  UpdateStats(progress);
  return progress;
}

void EngineImpl::Run() {
  bool rested = false;
  while (true) {
    if (Step()) {
      rested = false;
      continue;
    }
    if (stopping_ == Stopping::kNow || (stopping_ == Stopping::kDrain && Idle())) break;
    if (rested && Idle() && PrepareMemory()) continue;
    rested = !inbox_->Wait(waiting_.empty() ? kIdleNs : kRetryNs);
  }
  inbox_->Close();
  RefuseRest();
}

void EngineImpl::Stop(bool drain) { inbox_->Push(StopCommand{drain}); }

bool EngineImpl::Idle() const {
  return waiting_.empty() && seated_.empty() && pins_.empty() && sending_.empty();
}

// A part of what the next prompts will write, if it has no memory yet.
bool EngineImpl::PrepareMemory() {
  const auto block_bytes = static_cast<int64_t>(kv_cache_->view().layout.block_bytes());
  const int ahead = static_cast<int>(std::max<int64_t>(1, kPreparedBytes / block_bytes));
  return kv_cache_->PrepareMore(pool_.num_ever_used() + ahead);
}

void EngineImpl::AbortAll() {
  for (auto* list : {&waiting_, &seated_}) {
    for (const Owned& s : *list) {
      if (s->state == State::kFinished) continue;
      if (s->prefill_only()) {
        FailPrefillJob(*s, absl::UnavailableError("the prefill daemon is stopping"));
      } else {
        FinishRequest(*s, FinishReason::kAbort);
      }
    }
  }
}

// What came in between the last step and the end of the loop.
void EngineImpl::RefuseRest() {
  ApplyCommands();
  Publish();
  RemoveFinished();
  UpdateStats(false);
}

// ---- scheduling ---------------------------------------------------------------------------------

RowRequest EngineImpl::Ask(const Sequence& s) const {
  RowRequest r{.precedence = s.precedence(),
               .num_blocks = static_cast<int>(s.block_table.size()),
               .takes_seat = !s.answering()};
  switch (s.state) {
    case State::kPrefilling:
    case State::kRunning:
      if (s.answering() && !MayGoOn(s)) break;
      r.phase = s.state == State::kRunning ? Phase::kDecode : Phase::kPrefill;
      r.position = s.num_computed_tokens;
      r.num_rows = s.num_tokens() - s.num_computed_tokens;
      r.preemptible = !s.prefill_only();
      break;
    case State::kVerifying:
      r.phase = Phase::kVerify;
      r.position = s.num_computed_tokens;
      r.num_rows = s.num_tokens() + s.num_drafts() - s.num_computed_tokens;
      r.preemptible = !s.prefill_only();
      break;
    case State::kDrafting:
      if (s.drafting_paused || !s.attempt->reads) break;
      r.phase = Phase::kDraft;
      r.position = s.num_anchored_tokens;
      r.num_rows = s.num_tokens() + s.num_drafts() - s.num_anchored_tokens;
      break;
    case State::kSelfDrafting:
      r.phase = Phase::kDraft;
      r.position = s.num_anchored_tokens;
      r.num_rows = 1;
      r.preemptible = true;
      break;
    default:
      break;
  }
  return r;
}

// Fills the batch. True when a sequence went on without rows.
bool EngineImpl::Schedule() {
  batch_.Clear();
  RemoveFinished();
  prompts_wait_ = AnyPrompt();
  num_decoding_ = static_cast<int>(std::count_if(seated_.begin(), seated_.end(), Decodes));
  AllowMoves();
  row_requests_.clear();
  for (const Owned& s : seated_) {
    ShareBlocks(*s);
    if (prompts_wait_ && s->said_to_go_on) Report(*s);
    row_requests_.push_back(Ask(*s));
  }
  const Plan& plan = scheduler_.Schedule(row_requests_, pool_.counts().available());
  for (int index : plan.preempted) {
    ++counters_.num_preemptions;
    Requeue(*seated_[index]);
  }
  for (const Grant& grant : plan.grants) {
    Sequence& s = *seated_[grant.index];
    // Preempted blocks that others share were counted but not freed: then it waits a step.
    if (AllocateBlocks(s, grant.num_new_blocks)) AddRows(s, grant.num_rows);
  }
  return EndUnscheduledSelfDrafts();
}

// Finished sequences leave; those that wait again change lists.
void EngineImpl::RemoveFinished() {
  const auto leave = [this](const Owned& s) {
    return s->state == State::kFinished && !s->output_pending;
  };
  std::erase_if(waiting_, [&](const Owned& s) {
    if (leave(s)) fair_share_.Dequeue(s->client);
    return leave(s);
  });
  std::erase_if(seated_, leave);
  for (size_t i = 0; i < seated_.size();) {
    if (seated_[i]->state != State::kWaiting) {
      ++i;
      continue;
    }
    Owned s = std::move(seated_[i]);
    seated_.erase(seated_.begin() + i);
    Enqueue(std::move(s));
  }
}

// ---- statistics ---------------------------------------------------------------------------------

// Whether a step should have moved something. A sequence that waits for a peer or for bytes has
// deadlines of its own.
bool EngineImpl::HasWork() const {
  const auto has_rows = [](const Owned& s) {
    return s->state == State::kPrefilling || s->state == State::kRunning ||
           s->state == State::kVerifying || s->state == State::kSelfDrafting ||
           (s->state == State::kDrafting && !s->drafting_paused && s->attempt->reads);
  };
  return std::any_of(seated_.begin(), seated_.end(), has_rows);
}

void EngineImpl::UpdateStats(bool progress) {
  if (progress) ++counters_.num_steps;
  if (progress || !HasWork()) counters_.last_progress_ns = Now();
  const BlockCounts blocks = pool_.counts();
  counters_.num_running = static_cast<int>(std::count_if(
      seated_.begin(), seated_.end(), [](const Owned& s) { return s->state != State::kHolding; }));
  counters_.num_waiting = static_cast<int>(waiting_.size());
  counters_.blocks_free = blocks.free;
  counters_.blocks_request = blocks.request;
  counters_.blocks_transfer = blocks.transfer;
  counters_.blocks_cached = blocks.cached;
  counters_.blocks_total = blocks.total;
  counters_.block_bytes = static_cast<int64_t>(kv_cache_->view().layout.block_bytes());
  UpdatePackingStats();
  std::lock_guard lock(stats_mutex_);
  stats_ = counters_;
}

// How long this step's batch took. The newest one weighs a third.
void EngineImpl::ObserveStep(bool has_prompt, int64_t ns) {
  int64_t& step_ns = has_prompt ? prompt_step_ns_ : answer_step_ns_;
  step_ns = step_ns == 0 ? ns : step_ns + (ns - step_ns) / 3;
}

void EngineImpl::CountRows(int num_rows) {
  for (size_t i = 0; i < std::size(EngineStats::kStepRowLimits); ++i) {
    counters_.step_rows_le[i] += num_rows <= EngineStats::kStepRowLimits[i] ? 1 : 0;
  }
  ++*std::rbegin(counters_.step_rows_le);
  counters_.step_rows += num_rows;
}

void EngineImpl::CountAccepted(Sequence& s, int num_drafts) {
  counters_.accepted_tokens += num_drafts;
  for (int i = 0; i < num_drafts; ++i) {
    ++counters_.accepted_at[std::min(s.num_accepted_drafts++, EngineStats::kNumDraftPositions - 1)];
  }
}

EngineStats EngineImpl::stats() const {
  EngineStats stats;
  {
    std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  if (remote_ != nullptr) {
    const RemotePrefillStats r = remote_->stats();
    stats.prefills_ejected = r.num_ejected;
    stats.prefill_ejections = r.num_ejections;
  }
  if (receiver_ != nullptr) {
    const ReceiverStats r = receiver_->stats();
    std::copy(std::begin(r.bytes), std::end(r.bytes), std::begin(stats.received_bytes));
    stats.received_chunks = r.chunks;
    stats.nacks = r.nacks;
    stats.checksum_errors = r.checksum_errors;
    stats.transfers_in_flight = r.transfers_in_flight;
    stats.transfer_bytes_in_flight = r.bytes_in_flight;
    stats.pull_wait_ns = r.pull_wait_ns;
    stats.pull_ns = r.pull_ns;
    stats.decode_ns = r.decode_ns;
    stats.refine_ns = r.refine_ns;
  }
  if (sender_ != nullptr) {
    stats.transfers_in_flight = sender_->num_attempts();
    stats.encode_ns = sender_->stats().encode_ns;
    stats.encode_exposed_ns = sender_->stats().encode_exposed_ns;
  }
  return stats;
}

}  // namespace lynx
