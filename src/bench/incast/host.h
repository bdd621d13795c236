// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

// Moves this process, which has one thread, to a host of the NetworkLab: its network, its /sys, and
// UCX on its one cable.
absl::Status MoveToHost(const std::string& host);

}  // namespace lynx
