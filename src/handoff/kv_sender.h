// SPDX-License-Identifier: Apache-2.0
// The prefill side of a hand-off: encodes finished pages into stages and posts them.
//
// Life of one attempt:
//   1. Begin     the decode daemon's Start was accepted; blocks are pinned for the transfer
//   2. Computed  called by the engine after each layer of each step: the KV of a token range of a
//                layer is final. Whole pages (and the last, partial one) are encoded on the
//                sender's own thread, those of the attempt with the least left first, and posted
//                at once: layers in order, anchors first.
//   3. the receiver pulls what it wants, in its order, and acknowledges the whole attempt
//   4. kDelivered (or kFailed) is polled by the engine, which then releases the transfer's pin
// Posted chunks per attempt are bounded: all anchors, at most `max_posted_chunks` of the later
// stages. Encoded later stages that are not posted yet are kept up to `max_held_bytes` in all;
// beyond that they are dropped and encoded again when their turn comes (the blocks are final and
// pinned).
//
// The transport never reads the blocks, only the encoded bytes: what the terminal events wait for
// is the encode thread. The sender is its transport's only handler: Create starts the transport,
// the destructor stops it.
//
// Every `announce_ms` the sender tells the receiver that the attempt lives and how much is posted;
// the receiver's answer renews the lease, and repeats an acknowledgement or abort that was lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codec/anchor_widths.h"
#include "lynx/codec.h"
#include "lynx/kv_layout.h"
#include "lynx/status.h"
#include "lynx/transport.h"

namespace lynx {

struct SendJob {
  AttemptId attempt;
  std::string receiver_address;      // Transport::address() of the decode daemon
  int first_token = 0;               // multiple of 64: the receiver has everything before
  int num_tokens = 0;                // of the whole prompt
  std::vector<BlockId> block_table;  // blocks of tokens 0 .. num_tokens - 1
  AnchorPlanes anchor;               // empty: the plan's own
};

struct SendEvent {
  enum class Kind : uint8_t { kDelivered, kFailed };
  AttemptId attempt;
  Kind kind = Kind::kDelivered;
  absl::Status error;
};

struct SenderStats {  // cumulative
  int64_t encode_ns = 0;
  // From when an attempt's last layer was computed until its last page was encoded.
  int64_t encode_exposed_ns = 0;
};

// Public methods are called from the engine thread, except where said.
class KvSender {
 public:
  struct Options {
    int max_posted_chunks = 32;  // of later stages, per attempt
    int lease_ms = 30000;        // an attempt not acknowledged or renewed for this long fails
    int announce_ms = 1000;
    size_t max_held_bytes = 256 << 20;  // of encoded later stages, over all attempts
  };
  // wake is called from any thread when Poll has something to say. The plan must fit codec and
  // pool (KvPageCodec::Create is OK for them). Codec and transport outlive the sender.
  static std::unique_ptr<KvSender> Create(const Options& options, const Codec& codec, SendPlan plan,
                                          KvPoolView pool, Transport& transport,
                                          std::function<void()> wake);
  virtual ~KvSender() = default;

  // kInvalidArgument: the job is malformed, or the plan has no such anchor; kUnavailable: the
  // receiver cannot be connected to. With no token to send the attempt is delivered at once.
  virtual absl::Status Begin(const SendJob& job) = 0;
  // Tokens [0, num_computed) of this layer are in the pool and will not change.
  virtual void Computed(AttemptId attempt, int layer, int num_computed) = 0;
  // Stops posting; the attempt ends with kFailed(kCancelled) once no byte of its blocks is in use.
  virtual void Cancel(AttemptId attempt) = 0;
  virtual std::vector<SendEvent> Poll() = 0;
  virtual int num_attempts() const = 0;
  // About how long until the receiver has pulled the rest of the attempt, at the rate so far; 0
  // when the attempt is over. Nothing: not known yet.
  virtual std::optional<int64_t> LeftNs(AttemptId attempt) const = 0;
  virtual SenderStats stats() const = 0;  // any thread
};

}  // namespace lynx
