// SPDX-License-Identifier: Apache-2.0
// Servers side by side: all in every round, so that what changes on the machine changes for all.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lynx/status.h"
#include "nlohmann/json.hpp"

namespace lynx {

// What one server did in one round.
struct ServerRound {
  int completed = 0, failed = 0;
  std::vector<std::pair<std::string, double>> figures;  // the same names in all rounds
};

// Runs rounds 1..num_rounds; each asks every server once, and begins with the next one. Emits a
// line for each server and round, then medians and spreads ((largest - smallest) / median) of
// each server, then for each peer the ratios of server 0 to it: the median, least and largest
// over rounds of the quotient within a round, but none of figures that begin with std_. Figures
// that end in _ms are better when they are less. Fails when a server completes nothing in a round.
// names: two or more.
absl::Status CompareServers(const std::vector<std::string>& names, int num_rounds,
                            const std::function<ServerRound(size_t server, int round)>& run,
                            const std::function<void(const nlohmann::ordered_json&)>& emit);

}  // namespace lynx
