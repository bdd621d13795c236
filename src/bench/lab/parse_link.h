// SPDX-License-Identifier: Apache-2.0
// The options --link and --rtt of benchmarks in a NetworkLab.
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

// "200mbit", "2.5gbit": bits per second.
absl::StatusOr<double> ParseBitRate(const std::string& text);
// "0.2ms", "200us", "1s", "0": seconds.
absl::StatusOr<double> ParseSeconds(const std::string& text);

}  // namespace lynx
