// SPDX-License-Identifier: Apache-2.0
// The lifetime events of a request. Every latency metric (TTFT, TTST, T(k), stall, transfer time,
// TPOT, acceptance) is computed from a Timeline, in src/core/timeline.cc and nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lynx {

enum class Event : uint8_t {
  kArrived,         // the daemon that reports the timeline received the request
  kScheduled,       // left the waiting queue
  kPrefillStarted,  // first chunk ran (colocated) or the hand-off was asked for
  kFirstToken,      // token 1 known, exact
  kAnchorLanded,    // drafting may start
  kFirstDraft,
  kSourceVerified,  // the first token after token 1 that the prefill side vouched for
  kResidualLanded,  // the 8-bit level is complete
  kTargetLanded,    // every byte of the target is here
  kRefined,         // the target is in the blocks
  kVerified,        // the verification pass accepted or revoked the drafts
  kFinished,
  kNumEvents,
};

// Who says what follows token 1 before the target KV is on the decode side.
enum class VerifyMode : uint8_t {
  kResidual,  // nobody: drafts wait for the target KV
  kSource,    // the prefill side judges drafts that are sent back to it
  kHold,      // the prefill side goes on decoding; nothing is drafted
  kAuto,      // kResidual or kSource by estimate; an idle prefill side also goes on decoding
};
inline constexpr std::array<const char*, 4> kVerifyModeNames = {"residual", "source", "hold",
                                                                "auto"};
inline const char* Name(VerifyMode mode) { return kVerifyModeNames[static_cast<size_t>(mode)]; }
inline std::optional<VerifyMode> VerifyModeOf(std::string_view name) {
  for (size_t i = 0; i < kVerifyModeNames.size(); ++i) {
    if (name == kVerifyModeNames[i]) return static_cast<VerifyMode>(i);
  }
  return std::nullopt;
}

struct Timeline {
  // Nanoseconds on the monotonic clock of the reporting daemon; 0 = did not happen.
  std::array<int64_t, static_cast<size_t>(Event::kNumEvents)> at_ns = {};
  std::vector<int64_t> token_ns;  // when each output token became final
  // Of the same tokens: when it was drafted; its final time where it was not.
  std::vector<int64_t> provisional_ns;
  int num_drafted = 0;
  int num_accepted = 0;
  int num_self_drafted = 0;  // after the hand-off, on the sequence's own KV; not in the two above
  int num_self_accepted = 0;
  int num_handoffs = 0;                       // attempts, 0 = prefilled locally
  std::vector<int64_t> stage_bytes;           // received per stage: anchor, residual, exact
  VerifyMode verify = VerifyMode::kResidual;  // of the last attempt; for kAuto what it came to
  int num_verify_rounds = 0;                  // drafts sent back to the prefill side, so often
  int num_source_tokens = 0;                  // final by the prefill side's word, after token 1
  // What kAuto compared: until the target is here, until the prefill side answers. 0: not asked.
  int64_t estimated_residual_ns = 0, estimated_source_ns = 0;
  // What the last attempt sent first, as in kv.anchor; empty: the codec's only way.
  std::string anchor;
  // With kv.anchor auto: estimated from the start of that attempt to the 32nd final token after it,
  // or to the last one. 0: no estimate.
  int64_t estimated_anchor_ns = 0;

  int64_t at(Event e) const { return at_ns[static_cast<size_t>(e)]; }
  void Mark(Event e, int64_t now_ns) {
    if (auto& t = at_ns[static_cast<size_t>(e)]; t == 0) t = now_ns;
  }
};

}  // namespace lynx
