// SPDX-License-Identifier: Apache-2.0
#include "handoff/pull_scheduler.h"

#include <algorithm>

#include "lynx/status.h"

namespace lynx {

void PullScheduler::Begin(const AttemptId& attempt,
                          const std::array<int64_t, kNumPullClasses>& num_parts) {
  Attempt& a = attempts_[attempt];
  for (int c = 0; c < kNumPullClasses; ++c) a.lanes[c].num_parts_left = num_parts[c];
}

void PullScheduler::Add(const QueuedPull& pull, int64_t now_ns) {
  auto it = attempts_.find(pull.attempt);
  LYNX_CHECK(it != attempts_.end());
  Lane& lane = it->second.lanes[PullClass(pull.stage)];
  // A sender that posts little at a time does not lose its age when all of that is taken.
  if (lane.num_parts_seen == 0) lane.waiting_since_ns = now_ns;
  lane.num_parts_seen += pull.num_parts;
  lane.seen_bytes += static_cast<int64_t>(pull.bytes);
  // Stages beyond the last class share its lane: keep them in order.
  auto later = std::find_if(lane.queue.begin(), lane.queue.end(),
                            [&](const QueuedPull& other) { return other.stage > pull.stage; });
  lane.queue.insert(later, pull);
}

void PullScheduler::Promote(const AttemptId& attempt) {
  auto it = attempts_.find(attempt);
  if (it != attempts_.end()) it->second.promoted = true;
}

std::vector<OfferId> PullScheduler::End(const AttemptId& attempt) {
  std::vector<OfferId> offers;
  auto it = attempts_.find(attempt);
  if (it == attempts_.end()) return offers;
  for (const Lane& lane : it->second.lanes) {
    for (const QueuedPull& pull : lane.queue) offers.push_back(pull.offer);
  }
  attempts_.erase(it);
  return offers;
}

bool PullScheduler::HasQueued(const AttemptId& attempt) const {
  auto it = attempts_.find(attempt);
  return it != attempts_.end() && FirstLane(it->second) < kNumPullClasses;
}

int PullScheduler::FirstLane(const Attempt& attempt) {
  int lane = 0;
  while (lane < kNumPullClasses && attempt.lanes[lane].queue.empty()) ++lane;
  return lane;
}

PullScheduler::Rank PullScheduler::RankOf(const Attempt& attempt, int lane, int64_t now_ns) const {
  const Lane& l = attempt.lanes[lane];
  // Parts that were not offered yet are taken to be as large as those that were.
  const double mean_bytes =
      static_cast<double>(l.seen_bytes) / static_cast<double>(l.num_parts_seen);
  const double waited_s = static_cast<double>(now_ns - l.waiting_since_ns) * 1e-9;
  return {attempt.promoted ? 0 : lane,
          mean_bytes * static_cast<double>(l.num_parts_left) - waited_s * ageing_bytes_per_second_};
}

std::optional<QueuedPull> PullScheduler::Next(int64_t now_ns) {
  Attempt* best = nullptr;
  int best_lane = 0;
  Rank best_rank{};
  for (auto& [id, attempt] : attempts_) {
    const int lane = FirstLane(attempt);
    if (lane == kNumPullClasses) continue;
    const Rank rank = RankOf(attempt, lane, now_ns);
    if (best != nullptr && !(rank < best_rank)) continue;
    best = &attempt;
    best_lane = lane;
    best_rank = rank;
  }
  if (best == nullptr) return std::nullopt;
  Lane& lane = best->lanes[best_lane];
  const QueuedPull pull = lane.queue.front();
  if (outstanding_bytes_ > 0 && outstanding_bytes_ + pull.bytes > window_bytes_) {
    return std::nullopt;
  }
  lane.queue.pop_front();
  lane.num_parts_left -= pull.num_parts;
  outstanding_bytes_ += pull.bytes;
  return pull;
}

void PullScheduler::Completed(size_t bytes) {
  LYNX_CHECK(bytes <= outstanding_bytes_);
  outstanding_bytes_ -= bytes;
}

}  // namespace lynx
