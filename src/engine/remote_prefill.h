// SPDX-License-Identifier: Apache-2.0
// What a decode engine needs of prefill daemons. Implemented by src/rpc over gRPC and, in tests,
// by an in-process pair of engines. The engine never blocks in it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codec/anchor_widths.h"
#include "lynx/request.h"

namespace lynx {

struct RemotePrefillRequest {
  AttemptId attempt;
  std::string request_id;
  std::vector<TokenId> prompt_ids;  // the original prompt followed by tokens already emitted
  int num_emitted = 0;              // how many of them are output, for penalties and limits
  int num_cached_tokens = 0;        // multiple of 64: the decode side has these blocks
  SamplingParams sampling;          // for token 1
  std::string cache_salt;
  int priority = 0;  // of the request, as is the client
  uint64_t client = 0;
  std::string receiver_address;               // Transport::address() of the decode daemon
  VerifyMode verify = VerifyMode::kResidual;  // what the KV is kept for after token 1
  AnchorPlanes anchor;                        // what to send first; empty: the plan's own
  // Of RemotePrefill::Start alone: where attempts of the request have failed, as it answered then.
  std::vector<int> failed_at;
};

// A round: drafts for the prefill side to judge. One that comes while another of the attempt waits
// takes its place; who has sent several waits for the answer to the last.
struct VerifyRequest {
  AttemptId attempt;
  uint32_t round = 0;
  int position = 0;  // of the first draft; every token before it is final here
  std::vector<TokenId> drafts;
};

// One report of the prefill side: token 1 (once, first), or what follows it, or the end.
struct RemotePrefillEvent {
  AttemptId attempt;
  std::optional<TokenOutput> first_token;  // sampled from the exact cache
  std::vector<std::optional<TokenOutput>> prompt_logprobs;
  int num_cached_tokens = 0;  // prefix hits on the prefill side, with first_token
  // Final tokens that follow those reported before; position: of the first of them.
  std::vector<TokenOutput> verified;
  int position = 0;
  bool round_over = false;  // this round, and those before it, have their answer
  uint32_t round = 0;
  bool cannot_verify = false;  // no more final tokens will come of this attempt
  bool goes_on = false;        // with verified or round_over: more will come without a round
  int64_t step_ns = 0;         // how long a step takes there now; 0: not known
  absl::Status error;          // not OK: the attempt is over on that side
};

struct RemotePrefillStats {   // cumulative, but for the first
  int num_ejected = 0;        // prefill daemons whose last hand-off that ended has failed
  int64_t num_ejections = 0;  // failures that had one passed over for a while
};

class RemotePrefill {
 public:
  virtual ~RemotePrefill() = default;
  // False when no prefill daemon is usable now (the engine prefills locally or waits).
  virtual bool available() const = 0;
  // Opens the attempt on a prefill daemon, where none of the request has failed if there is such a
  // one. Answers which it is. `sink` may be called from any thread, one call at a time, token 1
  // first, an error last; never after the attempt was cancelled and that call returned.
  virtual int Start(const RemotePrefillRequest& request,
                    std::function<void(RemotePrefillEvent)> sink) = 0;
  // After token 1, of an attempt whose KV is kept: the answer comes through its sink.
  virtual void Verify(const VerifyRequest& request) = 0;
  virtual void Cancel(AttemptId attempt) = 0;
  // The attempt's hand-off has failed for a reason that may fail others there, too. Cancel follows.
  virtual void Failed(AttemptId attempt, const absl::Status& why) = 0;
  // The KV of this attempt has landed and been acknowledged: the call may close.
  virtual void Landed(AttemptId attempt) = 0;
  virtual RemotePrefillStats stats() const = 0;  // any thread
};

}  // namespace lynx
