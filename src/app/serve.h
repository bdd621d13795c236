// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/cluster_config.h"

namespace lynx {

// Fills in what `serve` chooses itself (free loopback ports, threads) and checks the result.
absl::StatusOr<ClusterConfig> CompleteForServe(ClusterConfig config);

// Starts a whole cluster on this machine, one process a daemon, tells in one line per stage how far
// it is, restarts daemons that die, and runs until SIGTERM or SIGINT.
// config: completed.
absl::Status RunServe(ClusterConfig config, const std::vector<std::string>& api_keys);

}  // namespace lynx
