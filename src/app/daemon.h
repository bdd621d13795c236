// SPDX-License-Identifier: Apache-2.0
// One engine behind a gRPC server: a prefill or a decode daemon (or a colocated one).
#pragma once

#include <string>

#include "core/cluster_config.h"
#include "engine/engine.h"

namespace lynx {

struct DaemonOptions {
  ClusterConfig config;
  Role role = Role::kDecode;
  int index = 0;               // which of the section's urls is ours
  std::string listen_address;  // empty: the port of the url, on loopback if the url is
};

// Runs until SIGTERM or SIGINT. The first lets running requests and transfers finish.
absl::Status RunDaemon(const DaemonOptions& options);

}  // namespace lynx
