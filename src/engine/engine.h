// SPDX-License-Identifier: Apache-2.0
// The engine: one loop over sequences, for all three roles. See engine.cc for the life cycle.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/remote_prefill.h"
#include "handoff/kv_receiver.h"
#include "handoff/kv_sender.h"
#include "lynx/engine_stats.h"
#include "lynx/kv_layout.h"
#include "lynx/request.h"
#include "speculation/anchor_policy.h"

namespace lynx {

class Model;

enum class Role : uint8_t { kColocated, kPrefill, kDecode };

// kv.resident: what becomes of cached blocks that nobody uses when their memory is needed.
enum class Resident : uint8_t {
  kBf16,   // they are dropped
  kExact,  // packed without loss
  k8Bit,   // packed in 8 bits, which is all that a hit gives back
};

struct EngineOptions {
  Role role = Role::kColocated;
  int max_num_seqs = 64;
  int max_num_batched_tokens = 512;  // token budget of a step, also the prefill chunk
  // colocated and decode role: prompt chunks shrink so that a step in which others decode takes no
  // longer, as far as the steps before it tell; 0: they do not
  int itl_target_ms = 50;
  int max_model_len = 0;  // 0 = the model's
  int num_kv_blocks = 0;
  int max_waiting = 256;      // more: kResourceExhausted
  int queue_timeout_s = 300;  // longer in the waiting queue at first: kDeadlineExceeded; 0: no end
  bool fair_share = true;     // within a priority, the client that has got least comes first
  bool enable_prefix_caching = true;
  // Of both sides of a hand-off; not kBf16 only where KV is in host memory. With k8Bit `verify` is
  // always kResidual: the two sides' KV of a prefix that was found may differ.
  Resident resident = Resident::kBf16;
  bool speculation = true;
  int max_draft_tokens = 64;
  double min_draft_survival = 0.05;  // stop drafting when the product of estimates falls below
  // colocated and decode role: how many drafts a decoding sequence makes by itself before each
  // verification; 0: none, absent: as SelfDraftPolicy decides. Not without `speculation`.
  std::optional<int> num_speculative_tokens;
  int draft_context_tokens = 1024;  // recent ones that such a draft reads
  // decode role: unless a request says otherwise. A lossy hand-off is always kResidual: its truth
  // is not what the prefill side would say.
  VerifyMode verify = VerifyMode::kResidual;
  int max_local_prefill_length = 128;  // decode role: shorter (uncached) prompts stay here
  int max_prefill_attempts = 3;        // decode role: failed ones in a row, then the request fails
  int retry_backoff_ms = 0;  // decode role: pause before the second attempt, doubled for each more
  int remote_wait_ms = 10000;  // decode role: how long a request waits for a usable prefill daemon
  // decode role: received KV equals the prefill side's bit for bit (false for lossy codecs and
  // kv.target 8bit: such blocks never enter the prefix cache).
  bool exact_handoff = true;
  // decode role: what the anchor of a hand-off may be. No candidates: the plan's own.
  AnchorOptions anchors;
  std::function<int64_t()> clock_ns;  // empty: the monotonic clock
};

using OutputSink = std::function<void(EngineOutput)>;         // engine thread
using PrefillSink = std::function<void(RemotePrefillEvent)>;  // engine thread

class Engine {
 public:
  // The role's peers are null where the role has none: sender for kPrefill; receiver and remote
  // for kDecode (receiver_address is what prefill daemons connect to). The factories get the
  // pool and the engine's wake function.
  struct Peers {
    std::function<std::unique_ptr<KvSender>(KvPoolView, std::function<void()> wake)> make_sender;
    std::function<std::unique_ptr<KvReceiver>(KvPoolView, std::function<void()> wake)>
        make_receiver;
    RemotePrefill* remote = nullptr;
    std::string receiver_address;
  };
  // kResourceExhausted when the KV pool or the logits of a step do not fit into memory,
  // kInvalidArgument when an option cannot be.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options, Model& model,
                                                        Peers peers);
  virtual ~Engine() = default;

  // Any thread. Refusals (queue full, too long, draining, an id that is in use) come through the
  // sink, after Run has ended on the calling thread. The sink's last call has finished().
  virtual void Submit(Request request, OutputSink sink) = 0;
  // A job of the prefill role: compute the prompt, sample token 1, hand the KV over, and until
  // that is done say what follows if asked to.
  virtual void SubmitPrefill(RemotePrefillRequest job, PrefillSink sink) = 0;
  virtual void Verify(VerifyRequest request) = 0;     // of a SubmitPrefill's attempt
  virtual void Cancel(std::string request_id) = 0;    // Submit's
  virtual void CancelPrefill(AttemptId attempt) = 0;  // SubmitPrefill's
  virtual EngineStats stats() const = 0;

  // One step by hand (tests): true when something was done. Not together with Run.
  virtual bool Step() = 0;
  // The loop, until Stop. Sleeps when there is nothing to do.
  virtual void Run() = 0;
  // Refuses new requests (kUnavailable). drain: lets running ones and outgoing transfers finish.
  virtual void Stop(bool drain) = 0;
};

}  // namespace lynx
