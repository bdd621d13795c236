// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include <algorithm>

namespace lynx {

std::optional<int64_t> Between(const Timeline& t, Event from, Event to) {
  if (t.at(from) == 0 || t.at(to) == 0) return std::nullopt;
  return t.at(to) - t.at(from);
}

std::optional<int64_t> QueueTime(const Timeline& t) {
  return Between(t, Event::kArrived, Event::kScheduled);
}
std::optional<int64_t> PrefillTime(const Timeline& t) {
  return Between(t, Event::kPrefillStarted, Event::kFirstToken);
}
std::optional<int64_t> TransferTime(const Timeline& t) {
  return Between(t, Event::kPrefillStarted, Event::kTargetLanded);
}
std::optional<int64_t> DecodeTime(const Timeline& t) {
  return Between(t, Event::kFirstToken, Event::kFinished);
}
std::optional<int64_t> InferenceTime(const Timeline& t) {
  return Between(t, Event::kScheduled, Event::kFinished);
}
std::optional<int64_t> EndToEnd(const Timeline& t) {
  return Between(t, Event::kArrived, Event::kFinished);
}
std::optional<int64_t> TimeToFirstDraft(const Timeline& t) {
  return Between(t, Event::kArrived, Event::kFirstDraft);
}

std::optional<int64_t> TimeToToken(const Timeline& t, int k) {
  if (k < 1 || static_cast<size_t>(k) > t.token_ns.size() || t.at(Event::kArrived) == 0) {
    return std::nullopt;
  }
  return t.token_ns[k - 1] - t.at(Event::kArrived);
}

std::optional<double> TimePerOutputToken(const Timeline& t) {
  if (t.token_ns.size() < 2) return std::nullopt;
  return static_cast<double>(t.token_ns.back() - t.token_ns.front()) /
         static_cast<double>(t.token_ns.size() - 1);
}

std::optional<int64_t> LongestStall(const Timeline& t) {
  if (t.token_ns.size() < 2) return std::nullopt;
  int64_t longest = 0;
  for (size_t i = 1; i < t.token_ns.size(); ++i) {
    longest = std::max(longest, t.token_ns[i] - t.token_ns[i - 1]);
  }
  return longest;
}

std::optional<double> AcceptanceRate(const Timeline& t) {
  if (t.num_drafted == 0) return std::nullopt;
  return static_cast<double>(t.num_accepted) / t.num_drafted;
}

}  // namespace lynx
