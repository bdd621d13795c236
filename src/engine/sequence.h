// SPDX-License-Identifier: Apache-2.0
// One request inside the engine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kv/prefix_cache.h"
#include "sampling/token_counts.h"
#include "sched/scheduler.h"
#include "speculation/draft_context.h"
#include "speculation/self_draft_policy.h"

namespace lynx {

// See the life cycle in engine.cc.
enum class State : uint8_t {
  kWaiting,       // holds no blocks
  kPrefilling,    // its tokens are computed here, chunk by chunk
  kLoading,       // decode role: KV is arriving or being refined
  kDrafting,      // decode role: the anchor is readable, the target is still arriving
  kVerifying,     // the target is in the blocks, the drafts are to be judged
  kRunning,       // one token per step
  kSelfDrafting,  // between two tokens: drafts are made on part of the exact KV
  kHolding,       // prefill role: token 1 is out, the KV is kept for drafts to judge
  kFinished,      // released; leaves the engine at the end of the step
};

// The hand-off of a sequence, on the decode side.
struct HandoffAttempt {
  AttemptId id;
  int where = 0;       // the prefill daemon, see RemotePrefill::Start
  int num_tokens = 0;  // of the hand-off's prompt: what the refined blocks hold
  bool first_token_known = false;
  bool anchor_landed = false;
  bool target_landed = false;
  bool refined = false;
  bool promoted = false;
  bool reads = false;  // its drafts may read the blocks: nothing is refined
  // What the prefill side does beside sending: kResidual, kSource (also for kAuto) or kHold.
  VerifyMode verify = VerifyMode::kResidual;
  bool source_goes_on = false;  // as the last report says
  int64_t source_step_ns = 0;   // the same; 0: not known
  bool round_open = false;      // drafts are with the prefill side
  uint32_t round = 0;           // the last that was sent
  int round_num_drafts = 0;
  int64_t round_sent_ns = 0;  // since when one is open
  int64_t start_ns = 0, anchor_landed_ns = 0, target_landed_ns = 0;
  int64_t anchor_bytes = 0;
};

// Belongs to the engine, engine thread only.
struct Sequence {
  int64_t number = 0;  // order of arrival, unique
  std::string id;
  int priority = 0;
  uint64_t client = 0;
  int64_t queued_ns = 0;     // when it came into the queue first
  double client_served = 0;  // what its client had got when the queue was last put in order
  SamplingParams sampling;
  std::string cache_salt;
  bool show_drafts = false;
  VerifyMode verify = VerifyMode::kResidual;  // as asked for

  // Exactly one of the two sinks is set; prefill_sink = a job of the prefill role.
  OutputSink sink;
  PrefillSink prefill_sink;
  RemotePrefillRequest job;    // without its prompt_ids, which are `tokens`
  RemotePrefillEvent report;   // of a job: what this step has brought
  bool said_to_go_on = false;  // of a job: in its last report
  uint32_t round = 0;          // of a job: the last that has come

  std::vector<TokenId> tokens;  // prompt, then verified output
  int num_prompt_tokens = 0;
  int num_computed_tokens = 0;  // leading tokens whose exact KV is in the blocks
  std::vector<BlockId> block_table;
  State state = State::kWaiting;
  int times_passed = 0;  // in the waiting queue, by later ones

  // Prefix cache: the leading blocks that are known to it.
  PrefixId prefix = 0;
  int num_known_blocks = 0;
  int num_cached_tokens = 0;  // hits where the prompt was prefilled, for the report
  bool exact = true;          // its KV is what local prefill would give

  // Drafts follow `tokens`. counted: they are part of `counts`.
  std::vector<TokenId> drafts;
  std::vector<float> draft_margins;
  std::vector<int64_t> draft_ns;  // when each was made
  int num_anchored_tokens = 0;  // leading tokens and drafts that have KV, exact or not, for drafts
  int anchor = -1;              // of the last attempt, among the candidates; -1: nothing was chosen
  bool drafting_paused = false;
  bool drafts_counted = false;
  int num_accepted_drafts = 0;  // of this run, final by now and no longer in `drafts`
  int num_shown_drafts = 0;
  DraftContext draft_context;  // of the self-drafts that are being made
  int max_self_drafts = 0;  // that may be made before they are judged; 0: drafts are no self-drafts
  bool has_self_draft_row = false;  // in the step that is being planned
  SelfDraftRecord self_draft_record;

  std::optional<HandoffAttempt> attempt;
  std::vector<int> failed_at;      // where attempts have failed since the last that has not
  int64_t remote_deadline_ns = 0;  // 0: a prefill daemon is usable
  int64_t next_attempt_ns = 0;     // not before

  TokenCounts counts;
  std::vector<std::optional<TokenOutput>> prompt_logprobs;
  bool prompt_logprobs_wanted = false;  // and not yet reported
  Timeline timeline;
  EngineOutput output;  // of this step
  bool output_pending = false;

  bool prefill_only() const { return prefill_sink != nullptr; }
  // A prefill job whose token 1 is out.
  bool answering() const {
    return prefill_only() &&
           (state == State::kRunning || state == State::kVerifying || state == State::kHolding);
  }
  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_output_tokens() const { return num_tokens() - num_prompt_tokens; }
  int num_drafts() const { return static_cast<int>(drafts.size()); }
  Precedence precedence() const { return {.priority = priority, .arrival = number}; }
};

}  // namespace lynx
