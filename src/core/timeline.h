// SPDX-License-Identifier: Apache-2.0
// Every latency metric of a request, computed from its lifetime events and nowhere else.
#pragma once

#include <cstdint>
#include <optional>

#include "lynx/lifetime.h"

namespace lynx {

// Durations in nanoseconds; nothing when an event did not happen. Verified tokens only.
std::optional<int64_t> Between(const Timeline& t, Event from, Event to);

std::optional<int64_t> QueueTime(const Timeline& t);      // arrived -> scheduled
std::optional<int64_t> PrefillTime(const Timeline& t);    // prefill started -> first token
std::optional<int64_t> TransferTime(const Timeline& t);   // prefill started -> target landed
std::optional<int64_t> DecodeTime(const Timeline& t);     // first token -> finished
std::optional<int64_t> InferenceTime(const Timeline& t);  // scheduled -> finished
std::optional<int64_t> EndToEnd(const Timeline& t);       // arrived -> finished

// Time to the k-th token, k = 1, 2, … : TTFT, TTST, T(k).
std::optional<int64_t> TimeToToken(const Timeline& t, int k);
inline std::optional<int64_t> TimeToFirstToken(const Timeline& t) { return TimeToToken(t, 1); }
inline std::optional<int64_t> TimeToSecondToken(const Timeline& t) { return TimeToToken(t, 2); }
// Time to the first draft, the earliest provisional token after token 1.
std::optional<int64_t> TimeToFirstDraft(const Timeline& t);

// Mean time per output token after the first; needs two tokens.
std::optional<double> TimePerOutputToken(const Timeline& t);
// The longest gap between neighbouring tokens.
std::optional<int64_t> LongestStall(const Timeline& t);
// Accepted ÷ drafted tokens; nothing without drafts.
std::optional<double> AcceptanceRate(const Timeline& t);

}  // namespace lynx
