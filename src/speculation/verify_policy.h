// SPDX-License-Identifier: Apache-2.0
// verify: auto. Whether to ask the prefill side about drafts, or to wait for the target KV.
//
// The target is here after bytes / rate; the prefill side's answer after the network's share of a
// round and about one and a half of its steps (half of the one that runs, then its own). Whichever
// is sooner is worth it. Everything is learnt from what has been seen, exponentially weighted; of
// the network's share a shorter one is believed at once, a longer one slowly: on a busy prefill
// side rounds also wait for what is no network, and a round too many costs a few rows there, one
// too few the whole wait for the target here.
#pragma once

#include <cstdint>

#include "speculation/learnt_mean.h"

namespace lynx {

// One per decode engine; the engine thread's.
class VerifyPolicy {
 public:
  // A whole hand-off has landed: its bytes, and how fast those after the anchor came.
  void ObserveTransfer(int num_tokens, int64_t bytes, int64_t later_bytes, int64_t later_ns);
  // Of the link; 0: not known.
  void ObserveRate(double bytes_per_second);
  // A round's answer came `round_ns` after it was sent; a step there takes step_ns (0: not known).
  void ObserveRound(int64_t round_ns, int64_t step_ns);
  void ObserveStep(int64_t step_ns);

  // Until the target of a hand-off of num_tokens is complete, of which `bytes_here` had landed
  // `since_ns` ago. kNotKnown before a first transfer.
  int64_t ResidualNs(int num_tokens, int64_t bytes_here, int64_t since_ns) const;
  // Until drafts that are sent now are answered.
  int64_t SourceNs() const;
  static bool AskSource(int64_t residual_ns, int64_t source_ns) {
    return residual_ns == kNotKnown || source_ns < residual_ns;
  }

  // Of the bytes after anchors, or of the link; 0: not known.
  double bytes_per_second() const { return bytes_per_ns_.value() * 1e9; }

  static constexpr int64_t kNotKnown = 0;

 private:
  LearntMean bytes_per_token_;
  LearntMean bytes_per_ns_;
  double network_ns_ = 0;  // 0: not known
  double step_ns_ = 0;     // the same
};

}  // namespace lynx
