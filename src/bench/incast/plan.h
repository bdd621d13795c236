// SPDX-License-Identifier: Apache-2.0
// When the requests of an incast run arrive, and the schedule that their bytes would have on an
// ideal link. Pure logic: no clock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "handoff/pull_scheduler.h"

namespace lynx {

using ClassBytes = std::array<double, kNumPullClasses>;  // anchor, residual, exact

struct IncastRequest {
  double arrival_s = 0;
  int sender = 0;
  int num_tokens = 0;
  ClassBytes bytes = {};
};

struct IncastLoad {
  int num_senders = 1;
  int num_requests = 0;
  double bytes_per_second = 0;  // of the receiver's link
  double load = 0;              // mean bytes asked for, over bytes_per_second
  uint64_t seed = 0;
};

// Poisson arrivals: of a random length among `sizes` (tokens -> bytes), from a random sender.
std::vector<IncastRequest> PlanArrivals(const IncastLoad& load,
                                        const std::map<int, ClassBytes>& sizes);

// Seconds from a request's arrival until all bytes of each class have arrived, on a link that moves
// bytes_per_second of one request at a time, at once and without overhead, in PullScheduler's
// order: class, then fewest bytes left less an allowance of a quarter of the rate for waiting.
std::vector<ClassBytes> IdealSchedule(const std::vector<IncastRequest>& requests,
                                      double bytes_per_second);

}  // namespace lynx
