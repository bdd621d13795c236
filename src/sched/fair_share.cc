// SPDX-License-Identifier: Apache-2.0
#include "sched/fair_share.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace lynx {

void FairShare::Enqueue(uint64_t client) {
  const double floor = Floor();
  if (counters_.size() >= 2 * kMaxClients) Forget();
  Counter& c = counters_[client];
  if (c.num_waiting == 0) c.served = std::max(c.served, floor);
  ++c.num_waiting;
  ++num_waiting_;
}

void FairShare::Dequeue(uint64_t client) {
  Counter& c = counters_[client];
  last_client_ = client;
  --c.num_waiting;
  --num_waiting_;
}

void FairShare::ChargePrompt(uint64_t client, int num_tokens) {
  counters_[client].served += kPromptWeight * num_tokens;
}

void FairShare::ChargeOutput(uint64_t client, int num_tokens) {
  counters_[client].served += kOutputWeight * num_tokens;
}

double FairShare::counter(uint64_t client) const {
  const auto it = counters_.find(client);
  return it == counters_.end() ? 0 : it->second.served;
}

double FairShare::Floor() const {
  if (num_waiting_ == 0) return counter(last_client_);
  double least = std::numeric_limits<double>::max();
  for (const auto& [client, c] : counters_) {
    if (c.num_waiting > 0) least = std::min(least, c.served);
  }
  return least;
}

void FairShare::Forget() {
  std::vector<double> idle;
  for (const auto& [client, c] : counters_) {
    if (c.num_waiting == 0) idle.push_back(c.served);
  }
  if (idle.size() <= kMaxClients) return;
  const auto last = idle.begin() + static_cast<ptrdiff_t>(idle.size() - kMaxClients);
  std::nth_element(idle.begin(), last, idle.end());
  std::erase_if(counters_, [limit = *last](const auto& entry) {
    return entry.second.num_waiting == 0 && entry.second.served <= limit;
  });
}

}  // namespace lynx
