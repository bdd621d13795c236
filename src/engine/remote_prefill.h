// SPDX-License-Identifier: Apache-2.0
// What a decode engine needs of prefill daemons. Implemented by src/rpc over gRPC and, in tests,
// by an in-process pair of engines. The engine never blocks in it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

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
  std::string receiver_address;  // Transport::address() of the decode daemon
};

struct RemotePrefillEvent {
  AttemptId attempt;
  std::optional<TokenOutput> first_token;  // sampled from the exact cache
  std::vector<std::optional<TokenOutput>> prompt_logprobs;
  int num_cached_tokens = 0;  // prefix hits on the prefill side, with first_token
  absl::Status error;         // not OK: the attempt is over on that side
};

class RemotePrefill {
 public:
  virtual ~RemotePrefill() = default;
  // False when no prefill daemon is usable now (the engine prefills locally or waits).
  virtual bool available() const = 0;
  // Opens the attempt on a prefill daemon. `sink` may be called from any thread, first token then
  // nothing, or an error; never after the attempt was cancelled and that call returned.
  virtual void Start(const RemotePrefillRequest& request,
                     std::function<void(RemotePrefillEvent)> sink) = 0;
  virtual void Cancel(AttemptId attempt) = 0;
  // The KV of this attempt has landed and been acknowledged: the call may close.
  virtual void Landed(AttemptId attempt) = 0;
};

}  // namespace lynx
