// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "core/cluster_config.h"

namespace lynx {

// The HTTP front of a cluster. Runs until SIGTERM or SIGINT.
absl::Status RunGateway(const ClusterConfig& config, const std::vector<std::string>& api_keys);

}  // namespace lynx
