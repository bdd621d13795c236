// SPDX-License-Identifier: Apache-2.0
// The lifetime events of a request. Every latency metric (TTFT, TTST, T(k), stall, transfer time,
// TPOT, acceptance) is computed from a Timeline, in src/core/timeline.cc and nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lynx {

enum class Event : uint8_t {
  kArrived,         // the daemon that reports the timeline received the request
  kScheduled,       // left the waiting queue
  kPrefillStarted,  // first chunk ran (colocated) or the hand-off was asked for
  kFirstToken,      // token 1 known, exact
  kAnchorLanded,    // drafting may start
  kFirstDraft,
  kResidualLanded,  // the 8-bit level is complete
  kTargetLanded,    // every byte of the target is here
  kRefined,         // the target is in the blocks
  kVerified,        // the verification pass accepted or revoked the drafts
  kFinished,
  kNumEvents,
};

struct Timeline {
  // Nanoseconds on the monotonic clock of the reporting daemon; 0 = did not happen.
  std::array<int64_t, static_cast<size_t>(Event::kNumEvents)> at_ns = {};
  std::vector<int64_t> token_ns;  // when each output token became final
  int num_drafted = 0;
  int num_accepted = 0;
  int num_handoffs = 0;              // attempts, 0 = prefilled locally
  std::vector<int64_t> stage_bytes;  // received per stage: anchor, residual, exact

  int64_t at(Event e) const { return at_ns[static_cast<size_t>(e)]; }
  void Mark(Event e, int64_t now_ns) {
    if (auto& t = at_ns[static_cast<size_t>(e)]; t == 0) t = now_ns;
  }
};

}  // namespace lynx
