// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bench/lab/network_lab.h"

namespace lynx {

// A TCP connection from one host of a lab to another: small messages to and fro, then bytes for
// about 0.4 s at the expected rate, of which the last three quarters are timed by their receiver.
// from, to: namespaces; address: of `to`.
absl::StatusOr<LinkMeasurement> ProbeLink(const std::string& from, const std::string& to,
                                          const std::string& address, double expected_bps);

}  // namespace lynx
