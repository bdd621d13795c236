// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

// Sets up spdlog for this process: standard error, UTC time, the daemon's name in every line.
// level: trace, debug, info, warn, error.
absl::Status InitLog(const std::string& daemon_name, const std::string& level);

}  // namespace lynx
