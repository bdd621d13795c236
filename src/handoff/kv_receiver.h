// SPDX-License-Identifier: Apache-2.0
// The decode side of a hand-off: decides which posted chunk moves when (over all senders), knows
// what has landed, and decodes stages into KV blocks.
//
// Life of one attempt:
//   1. Begin           blocks are reserved by the engine; the receiver now accepts chunks of it
//   2. chunks land     ordered by class (anchor < residual < exact), inside a class shortest
//                      remaining first with ageing, at most `window_bytes` outstanding in all
//      a page of which every stage is here is decoded into the blocks at once, to the target
//   3. kAnchorLanded   every stage-0 byte is here, every page is decoded from its anchor or from
//                      all of it: drafting may start
//   4. Read            the engine reads the blocks (drafts): nothing is written into them until
//      Refine          it says that it has stopped; pages are refined again as they come
//   5. kResidualLanded, kTargetLanded   all bytes of stage 1 / of the last stage are here
//   6. kRefined        the blocks hold the target; the sender has its ack; the attempt is over
// So what has landed before drafting starts is decoded once, and what lands while nothing is
// drafted is refined meanwhile. A plan with one stage goes from chunks to kRefined without 3 to 5,
// and so does an attempt without tokens. kFailed and kCancelled are terminal: after them nothing
// writes into the blocks. (Chunks are pulled into memory of their own; only the codec thread writes
// into blocks.)
//
// What is refused: chunks of unknown attempts (after a while: Begin may still be on its way), of
// ended ones, from another peer than the attempt's, and duplicates are dropped and counted; a chunk
// of the attempt's own sender with wrong geometry, size, format or checksum fails the attempt. The
// sender is told in each case. A lost peer fails the attempts that began on this connection to it,
// and a sender that gives an attempt up fails it, except where all has landed.
//
// The receiver is its transport's only handler: Create starts the transport, the destructor stops
// it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/anchor_widths.h"
#include "lynx/codec.h"
#include "lynx/kv_layout.h"
#include "lynx/status.h"
#include "lynx/transport.h"

namespace lynx {

struct ReceiveJob {
  AttemptId attempt;
  int first_token = 0;  // multiple of 64
  int num_tokens = 0;
  std::vector<BlockId> block_table;  // blocks of tokens 0 .. num_tokens - 1
  AnchorPlanes anchor;               // empty: the plan's own; the sender's job must say the same
};

struct ReceiveEvent {
  enum class Kind : uint8_t {
    kAnchorLanded,
    kResidualLanded,
    kTargetLanded,
    kReadable,  // Read may be asked for again
    kRefined,
    kFailed,
    kCancelled
  };
  AttemptId attempt;
  Kind kind = Kind::kAnchorLanded;
  absl::Status error;
  int64_t at_ns = 0;                 // monotonic
  std::vector<int64_t> stage_bytes;  // received so far, per stage
};

struct ReceiverStats {           // cumulative, for /metrics
  int64_t bytes[3] = {0, 0, 0};  // by class
  int64_t chunks = 0, nacks = 0, checksum_errors = 0;
  int64_t transfers_in_flight = 0, bytes_in_flight = 0;
  // Time in which something waited to be pulled, was being pulled; was checked, or decoded from the
  // anchor or the only stage; was decoded to the target.
  int64_t pull_wait_ns = 0, pull_ns = 0, decode_ns = 0, refine_ns = 0;
  double bytes_per_second = 0;  // while busy; 0: not known yet
};

class KvReceiver {
 public:
  struct Options {
    size_t window_bytes = 4 << 20;  // outstanding pulls over all senders
    bool adapt_window = true;       // to the measured rate (pull_window.h)
    // An attempt fails when this long nothing arrives of what its sender has posted. One that no
    // sender has announced waits in a prefill daemon's queue, which the caller watches.
    int transfer_timeout_ms = 45000;
    int unknown_attempt_ms = 10000;  // how long chunks wait for their Begin
    int max_unknown_chunks = 4096;   // how many do, over all senders
  };
  // wake is called from any thread when Poll has something to say. The plan must fit codec and
  // pool (KvPageCodec::Create is OK for them). Codec and transport outlive the receiver.
  static std::unique_ptr<KvReceiver> Create(const Options& options, const Codec& codec,
                                            SendPlan plan, KvPoolView pool, Transport& transport,
                                            std::function<void()> wake);
  virtual ~KvReceiver() = default;

  // Public methods are called from the engine thread.
  // kInvalidArgument: the job is malformed, or the plan has no such anchor; kUnavailable: its
  // sender has given it up already.
  virtual absl::Status Begin(const ReceiveJob& job) = 0;
  // After kAnchorLanded. True: the engine may read the blocks until it calls Refine or the attempt
  // ends. False: not now, because a page is being decoded, the target has landed or is expected
  // within soon_ns, or the attempt is over. An event follows: kReadable, at the latest when nothing
  // has come for soon_ns, or one that says that the target is here or the attempt has ended.
  virtual bool Read(AttemptId attempt, int64_t soon_ns) = 0;
  // The engine reads the blocks no more.
  virtual void Refine(AttemptId attempt) = 0;
  // A sequence is stalled on this attempt: its later stages move with the anchors.
  virtual void Promote(AttemptId attempt) = 0;
  // Ends with kCancelled once no pull or decode can touch the blocks any more.
  virtual void Cancel(AttemptId attempt) = 0;
  virtual std::vector<ReceiveEvent> Poll() = 0;
  virtual ReceiverStats stats() const = 0;  // any thread
};

}  // namespace lynx
