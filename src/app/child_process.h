// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct SpawnOptions {
  std::string network_namespace;  // a name of `ip netns`; empty: the caller's
  std::string log_file;           // stdout and stderr are appended to it; empty: the caller's
  std::vector<std::string> environment;  // "NAME=VALUE", added to the caller's
  std::vector<int> cores;                // it runs on these only; empty: where the caller may
};

// Runs this very program with other arguments. The child gets SIGTERM when the thread that called
// this dies, and starts with no signal blocked.
absl::StatusOr<pid_t> SpawnSelf(const std::vector<std::string>& arguments,
                                const SpawnOptions& options = {});

// "exited with code 3", "was killed by signal 9".
std::string DescribeExit(int wait_status);

// A port that was free on 127.0.0.1 a moment ago.
absl::StatusOr<int> FindFreePort();

// An error when nobody could listen there now: the port is taken, or the host is not this machine.
absl::Status CheckCanListen(const std::string& host, int port);

}  // namespace lynx
