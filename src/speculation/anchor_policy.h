// SPDX-License-Identifier: Apache-2.0
// kv.anchor: auto. How much of a hand-off's KV to send before drafting begins.
//
// A larger anchor comes later and is drafted on for a shorter time, but more of its drafts are
// right. For each candidate a the policy estimates the time from the start of the hand-off to the
// k-th final token, and takes the least; of equals the whole target, then the fewest bytes. With
//
//   P  until token 1 is known, and the last of the KV computed         r  rate of the link
//   s  a decode step                                                   m = k - 1
//   Q  bytes of others' anchors, R  all bytes of others, on their way  w  a round of drafts with
//   the B_a, B  bytes of the anchor, of the whole target                      prefill side, 0: none
//   e_a  share of drafts that are wrong, p_a = 1 - e_a
//
// the anchor lands at A = max(P, (Q + B_a) / r) and the target at T = max(A, (R + B) / r); of d
// drafts in a row g(d) = p + p^2 + … + p^d = p (1 - p^d) / e are right. Then
//
// 1. The prefill side judges drafts (w > 0): from A on, rounds of d = max(1, w / s) of them, each
//    of which makes g(d) + 1 tokens final in max(w, s). If m are before T, that is the answer:
//    A + m / rate. Otherwise rate (T - A) of them are final by T, and m' = m - rate (T - A)
//    missing.
// 2. By T, d = min((T - A) / s, max_draft_tokens, m' - 1) drafts were made. After the refinement of
//    the cache one step judges them, and every token that is missing then takes one more:
//    T + refinement + (m' - g(d)) s.
//
// The whole target takes T + m s: nothing is drafted, and it is decoded as it comes. (R is counted
// as ahead of it, though it travels with the anchors: overtaking others is no gain.) Numbers of
// drafts are real, so that estimates have no steps.
//
// A faster link does not always mean a larger anchor. While tokens become final before T it does; a
// target that takes for ever is time enough to draft on the largest, too (2., large T).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lynx {

struct AnchorCandidate {
  std::string name;             // as in kv.anchor
  std::vector<uint8_t> planes;  // leading planes of each tensor; the policy does not read them
  // Bytes of n tokens: fixed_bytes + n * bytes_per_token.
  double fixed_bytes = 0, bytes_per_token = 0;
  double prior_error = 0;  // share of wrong drafts that is expected before any is judged
  bool whole = false;      // the whole target
};

// What there is to choose from, with the bytes of the whole target. The fallback is chosen while
// too little is known, and when it is the only one. No candidates: nothing is chosen.
struct AnchorOptions {
  std::vector<AnchorCandidate> candidates;
  AnchorCandidate whole;
  size_t fallback = 0;
};

inline double BytesOf(const AnchorCandidate& anchor, int num_tokens) {
  return anchor.fixed_bytes + anchor.bytes_per_token * num_tokens;
}

// What is known when a hand-off starts. Times in seconds.
struct AnchorSituation {
  int num_tokens = 0;           // of the hand-off
  int num_wanted = 32;          // k
  double bytes_per_second = 0;  // 0: not known
  double step_s = 0;            // 0: not known
  double first_token_s = 0;
  double round_s = 0;   // 0: the prefill side judges no drafts
  double refine_s = 0;  // of the whole target
  double anchor_bytes_ahead = 0;
  double bytes_ahead = 0;
  int max_draft_tokens = 0;  // 0: nothing is drafted
};

struct AnchorChoice {
  size_t index = 0;
  double seconds = 0;  // estimated, to the k-th final token; 0: no estimate
};

// Final tokens per second that rounds of drafts bring (1. above), each of which takes round_s > 0.
double RoundRate(double round_s, double step_s, int max_draft_tokens, double error);

// `whole`: bytes of the whole target. error: 1 - p_a.
double SecondsToWanted(const AnchorCandidate& anchor, double error, double whole_bytes,
                       const AnchorSituation& now);

// One per decode engine; the engine thread's. Given the same observations, the same choices.
class AnchorPolicy {
 public:
  // Time to this token is what counts, or to the last one if there are fewer.
  static constexpr int kWantedTokens = 32;

  explicit AnchorPolicy(AnchorOptions options);

  std::span<const AnchorCandidate> candidates() const { return options_.candidates; }
  const AnchorCandidate& whole() const { return options_.whole; }

  // With at least one candidate. The fallback, without an estimate, while rate or step time are not
  // known.
  AnchorChoice Choose(const AnchorSituation& now) const;

  // Of the drafts on this candidate num_judged were judged, in order, and the first num_accepted
  // were right (so at most one was wrong).
  void Observe(size_t candidate, int num_judged, int num_accepted);

  // Expected share of wrong drafts. All candidates share what the model does to the priors (a
  // factor, from everything judged so far); each corrects that by what was judged on it. Old
  // observations are forgotten exponentially.
  double Error(size_t candidate) const;

 private:
  struct Count {
    double judged = 0, wrong = 0;
  };

  AnchorOptions options_;
  std::vector<Count> counts_;
};

}  // namespace lynx
