// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

// Runs this very program with other arguments. The child gets SIGTERM when its parent dies, and
// starts with no signal blocked.
absl::StatusOr<pid_t> SpawnSelf(const std::vector<std::string>& arguments);

// "exited with code 3", "was killed by signal 9".
std::string DescribeExit(int wait_status);

// A port that was free on 127.0.0.1 a moment ago.
absl::StatusOr<int> FindFreePort();

// An error when nobody could listen there now: the port is taken, or the host is not this machine.
absl::Status CheckCanListen(const std::string& host, int port);

}  // namespace lynx
