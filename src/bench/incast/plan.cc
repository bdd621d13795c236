// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/plan.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

namespace lynx {
namespace {

struct Backlog {
  ClassBytes left;
  int first_class() const {
    int c = 0;
    while (c < kNumPullClasses && left[c] <= 0) ++c;
    return c;
  }
};

}  // namespace

std::vector<IncastRequest> PlanArrivals(const IncastLoad& load,
                                        const std::map<int, ClassBytes>& sizes) {
  double mean_bytes = 0;
  for (const auto& [tokens, bytes] : sizes) {
    mean_bytes += std::accumulate(bytes.begin(), bytes.end(), 0.0) / sizes.size();
  }
  const double mean_gap_s = mean_bytes / (load.load * load.bytes_per_second);
  std::mt19937_64 random(load.seed);
  std::vector<IncastRequest> requests(load.num_requests);
  double now_s = 0;
  for (IncastRequest& request : requests) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
    now_s -= std::log1p(-uniform) * mean_gap_s;
    const auto size = std::next(sizes.begin(), static_cast<long>(random() % sizes.size()));
    request = {.arrival_s = now_s,
               .sender = static_cast<int>(random() % load.num_senders),
               .num_tokens = size->first,
               .bytes = size->second};
  }
  return requests;
}

std::vector<ClassBytes> IdealSchedule(const std::vector<IncastRequest>& requests,
                                      double bytes_per_second) {
  std::vector<Backlog> backlogs;  // of those that have arrived, in order
  std::vector<ClassBytes> done(requests.size());
  double now_s = 0;
  while (true) {
    const size_t next = backlogs.size();
    const double next_arrival_s =
        next < requests.size() ? requests[next].arrival_s : std::numeric_limits<double>::infinity();
    // All that wait age alike, so comparing what was left at time 0 of waiting is enough.
    std::tuple<int, double> best_rank{kNumPullClasses, 0};
    size_t best = next;
    for (size_t i = 0; i < next; ++i) {
      const int c = backlogs[i].first_class();
      if (c == kNumPullClasses) continue;
      const std::tuple rank{c, backlogs[i].left[c] + requests[i].arrival_s * bytes_per_second / 4};
      if (rank < best_rank) std::tie(best_rank, best) = std::tuple(rank, i);
    }
    if (best == next && next == requests.size()) return done;
    if (best < next) {
      const int c = std::get<0>(best_rank);
      double& left = backlogs[best].left[c];
      const double end_s = now_s + left / bytes_per_second;
      if (end_s <= next_arrival_s) {
        now_s = end_s;
        left = 0;
        done[best][c] = now_s - requests[best].arrival_s;
        continue;
      }
      left -= (next_arrival_s - now_s) * bytes_per_second;
    }
    now_s = next_arrival_s;
    backlogs.push_back({requests[next].bytes});
  }
}

}  // namespace lynx
