// SPDX-License-Identifier: Apache-2.0
// To which prefill daemon an attempt to hand KV over goes: the usable one with the fewest open
// attempts, but while there is another
//
//   - none whose hand-offs fail of late. It is ejected, as load balancers do with servers that
//     answer their health checks and fail their requests: for kFirstBackoffNs after a failure,
//     twice as long after each one that follows, up to kMaxBackoffNs. Then one attempt probes it
//     while others still pass it over, one of a request that has had no failure yet. When a
//     hand-off lands, when the daemon has restarted, or kForgetNs after that time (answers that are
//     over sooner than their hand-offs prove nothing), it is as good as any.
//   - none where an attempt of the same request has failed: one on which attempts fail at once has
//     the fewest open ones.
//
// So a request is never refused because of failures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "lynx/types.h"

namespace lynx {

struct PrefillDaemon {
  bool usable = false;
  uint64_t epoch = 0;  // of its process
};

// Not thread-safe. Times are of one monotonic clock. An attempt is known from Open until the first
// of Landed, Failed and Dropped, which do nothing for another.
class AttemptRouter {
 public:
  static constexpr int64_t kFirstBackoffNs = 2'000'000'000;
  static constexpr int64_t kMaxBackoffNs = 60'000'000'000;
  static constexpr int64_t kForgetNs = 60'000'000'000;

  explicit AttemptRouter(size_t num_daemons) : daemons_(num_daemons) {}

  // The index of the daemon that gets the attempt, unless none is usable; Close follows. `now` has
  // one entry for each daemon; failed_at: indices where attempts of the request have failed.
  std::optional<size_t> Open(AttemptId attempt, std::span<const PrefillDaemon> now,
                             std::span<const int> failed_at, int64_t now_ns);
  // An attempt on this daemon is no longer open there.
  void Close(size_t index) { --daemons_[index].num_open; }

  // Its KV has landed. The daemon, if it was ejected until now.
  std::optional<size_t> Landed(AttemptId attempt);
  // Its hand-off has failed. What follows, unless that was known already.
  struct Ejection {
    size_t index = 0;
    int64_t backoff_ns = 0;
  };
  std::optional<Ejection> Failed(AttemptId attempt, int64_t now_ns);
  // Given up, for a reason that says nothing of the daemon.
  void Dropped(AttemptId attempt) { Take(attempt); }

  // Daemons whose last hand-off that ended has failed, and failures that ejected one so far.
  int num_ejected() const;
  int64_t num_ejections() const { return num_ejections_; }

 private:
  struct Daemon {
    int num_open = 0;
    uint64_t epoch = 0;
    int num_failures = 0;  // in a row; more than 0: ejected
    int64_t failed_ns = 0, backoff_ns = 0;
    std::optional<AttemptId> probe;
  };
  struct Attempt {
    size_t index = 0;
    uint64_t epoch = 0;
    int64_t opened_ns = 0;
  };
  // Forgets the attempt. Nothing: it was not known, or its daemon has restarted since.
  std::optional<Attempt> Take(AttemptId attempt);

  std::vector<Daemon> daemons_;
  std::map<AttemptId, Attempt> attempts_;
  size_t next_ = 0;  // first choice among equals
  int64_t num_ejections_ = 0;
};

}  // namespace lynx
