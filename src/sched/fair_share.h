// SPDX-License-Identifier: Apache-2.0
// Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024):
// waiting requests are served in the order of how little their clients have got so far, so that a
// client with many requests does not delay one with few. Counters grow with the tokens that are
// served. A client whose requests begin to wait is lifted to the least counter among those that
// wait (without any: to that of the last one that did), so nobody saves up service by staying away.
//
// Not thread-safe. Holds at most kMaxClients counters of clients that do not wait; beyond that the
// ones that have got least are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace lynx {

class FairShare {
 public:
  static constexpr size_t kMaxClients = 4096;
  // The paper's weights of prompt and output tokens.
  static constexpr double kPromptWeight = 1, kOutputWeight = 2;

  // A request of the client begins or ceases to wait.
  void Enqueue(uint64_t client);
  void Dequeue(uint64_t client);
  void ChargePrompt(uint64_t client, int num_tokens);
  void ChargeOutput(uint64_t client, int num_tokens);
  // Lower = earlier. 0 for an unknown client.
  double counter(uint64_t client) const;
  size_t num_clients() const { return counters_.size(); }

 private:
  struct Counter {
    double served = 0;
    int num_waiting = 0;
  };
  double Floor() const;
  void Forget();

  std::unordered_map<uint64_t, Counter> counters_;
  int num_waiting_ = 0;
  uint64_t last_client_ = 0;  // that ceased to wait
};

}  // namespace lynx
