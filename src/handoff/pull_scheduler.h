// SPDX-License-Identifier: Apache-2.0
// Decides which offered chunk is pulled next, over all senders. Pure logic: no threads, no clock.
//
// Order: class (anchor < residual < exact); inside a class the attempt with the fewest bytes left
// in that class, less an allowance for every second since the first of them was offered, so that a
// large one is not starved; inside an attempt stage, then arrival. A promoted attempt's chunks are
// all anchors.
//
// How many bytes are left is estimated from how many *parts* are: the senders' chunks differ in how
// many KV heads they hold, so a chunk counts as that many parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "lynx/transport.h"
#include "lynx/types.h"

namespace lynx {

inline constexpr int kNumPullClasses = 3;
inline int PullClass(int stage) { return stage < kNumPullClasses ? stage : kNumPullClasses - 1; }

struct QueuedPull {
  OfferId offer = 0;
  AttemptId attempt;
  int stage = 0;
  size_t bytes = 0;
  int num_parts = 1;
};

class PullScheduler {
 public:
  explicit PullScheduler(size_t window_bytes) : window_bytes_(window_bytes) {}

  // num_parts[c]: how many parts of class c the attempt has in all.
  void Begin(const AttemptId& attempt, const std::array<int64_t, kNumPullClasses>& num_parts);
  // The attempt must have begun.
  void Add(const QueuedPull& pull, int64_t now_ns);
  void Promote(const AttemptId& attempt);
  // Forgets the attempt; answers its offers that were not handed out. Pulls under way still count
  // against the window until Completed.
  std::vector<OfferId> End(const AttemptId& attempt);

  // The next chunk to pull, which from now on counts against the window; nullopt when nothing is
  // queued or the window is full. A chunk larger than the window goes alone.
  std::optional<QueuedPull> Next(int64_t now_ns);
  void Completed(size_t bytes);

  void set_window_bytes(size_t bytes) { window_bytes_ = bytes; }
  // Bytes of waiting that one second is worth; a quarter of the link's rate is a good value.
  void set_ageing_bytes_per_second(double bytes) { ageing_bytes_per_second_ = bytes; }
  size_t window_bytes() const { return window_bytes_; }
  size_t outstanding_bytes() const { return outstanding_bytes_; }
  bool HasQueued(const AttemptId& attempt) const;

 private:
  struct Lane {  // one class of one attempt
    std::deque<QueuedPull> queue;
    int64_t num_parts_left = 0;  // not handed out yet, whether offered or not
    int64_t num_parts_seen = 0;
    int64_t seen_bytes = 0;
    int64_t waiting_since_ns = 0;
  };
  struct Attempt {
    std::array<Lane, kNumPullClasses> lanes;
    bool promoted = false;
  };
  struct Rank {
    int pull_class;
    double bytes_left;  // less the allowance for waiting
    bool operator<(const Rank& other) const {
      return pull_class != other.pull_class ? pull_class < other.pull_class
                                            : bytes_left < other.bytes_left;
    }
  };

  static int FirstLane(const Attempt& attempt);  // kNumPullClasses when nothing is queued
  Rank RankOf(const Attempt& attempt, int lane, int64_t now_ns) const;

  size_t window_bytes_;
  size_t outstanding_bytes_ = 0;
  double ageing_bytes_per_second_ = 16e6;
  std::map<AttemptId, Attempt> attempts_;
};

}  // namespace lynx
