// SPDX-License-Identifier: Apache-2.0
#include "rpc/attempt_router.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lynx {

std::optional<size_t> AttemptRouter::Open(AttemptId attempt, std::span<const PrefillDaemon> now,
                                          std::span<const int> failed_at, int64_t now_ns) {
  std::optional<size_t> best;
  std::tuple<bool, bool, int> best_rank;
  for (size_t k = 0; k < daemons_.size(); ++k) {
    const size_t i = (next_ + k) % daemons_.size();
    Daemon& d = daemons_[i];
    if (!now[i].usable) continue;
    const int64_t overdue_ns = now_ns - d.failed_ns - d.backoff_ns;
    if (now[i].epoch != d.epoch || overdue_ns >= kForgetNs) {
      d = {.num_open = d.num_open, .epoch = now[i].epoch};
    }
    const bool is_due = overdue_ns >= 0 && !d.probe && failed_at.empty();
    const bool passed_over = d.num_failures > 0 && !is_due;
    const bool has_failed =
        std::find(failed_at.begin(), failed_at.end(), static_cast<int>(i)) != failed_at.end();
    const std::tuple rank(passed_over, has_failed, d.num_open);
    if (best && rank >= best_rank) continue;
    best = i;
    best_rank = rank;
  }
  if (!best) return std::nullopt;
  Daemon& d = daemons_[*best];
  next_ = *best + 1;
  ++d.num_open;
  if (d.num_failures > 0 && !d.probe) d.probe = attempt;
  attempts_[attempt] = {.index = *best, .epoch = d.epoch, .opened_ns = now_ns};
  return best;
}

std::optional<AttemptRouter::Attempt> AttemptRouter::Take(AttemptId id) {
  const auto known = attempts_.extract(id);
  if (known.empty()) return std::nullopt;
  const Attempt attempt = known.mapped();
  Daemon& d = daemons_[attempt.index];
  if (d.epoch != attempt.epoch) return std::nullopt;
  if (d.probe == id) d.probe.reset();
  return attempt;
}

std::optional<size_t> AttemptRouter::Landed(AttemptId id) {
  const std::optional<Attempt> attempt = Take(id);
  if (!attempt || std::exchange(daemons_[attempt->index].num_failures, 0) == 0) return std::nullopt;
  daemons_[attempt->index].probe.reset();
  return attempt->index;
}

std::optional<AttemptRouter::Ejection> AttemptRouter::Failed(AttemptId id, int64_t now_ns) {
  const std::optional<Attempt> attempt = Take(id);
  if (!attempt) return std::nullopt;
  Daemon& d = daemons_[attempt->index];
  // Of several that were under way when a link broke, the first to fail has said it.
  if (d.num_failures > 0 && attempt->opened_ns < d.failed_ns) return std::nullopt;
  d.backoff_ns = d.num_failures == 0 ? kFirstBackoffNs : std::min(2 * d.backoff_ns, kMaxBackoffNs);
  d.failed_ns = now_ns;
  ++d.num_failures;
  ++num_ejections_;
  return Ejection{attempt->index, d.backoff_ns};
}

int AttemptRouter::num_ejected() const {
  return static_cast<int>(std::count_if(daemons_.begin(), daemons_.end(),
                                        [](const Daemon& d) { return d.num_failures > 0; }));
}

}  // namespace lynx
