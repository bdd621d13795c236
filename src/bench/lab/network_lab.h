// SPDX-License-Identifier: Apache-2.0
// Hosts on one machine, for measurements: network namespaces around a switch, with honest link
// rates and round trips. Needs root, `ip` and `tc` (iproute2), and /dev/net/tun for the way back.
//
//   p0 ─┐
//   p1 ─┤ switch ─ d0      from every p to d0: a token bucket at the p's port and one at d0's
//   …  ─┘   d0 ─> p        straight, through a delay line that takes the whole round trip
//
// The way back carries acknowledgements and small messages only, so delaying it there costs little
// and does not slow the bulk; no netem is needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct LinkSpec {
  double bits_per_second = 0;  // of every port, each way; Ethernet headers count
  double rtt_s = 0;            // added to the machine's own (some ten microseconds)
};

struct LinkMeasurement {
  double bits_per_second =
      0;             // payload of one TCP stream from p0 to d0; at most 95.6 % of the link
  double rtt_s = 0;  // median of small messages over an idle link
};

// One lab at a time on a machine. What a crashed run left behind is removed by Create.
class NetworkLab {
 public:
  struct Options {
    int num_prefill = 1;
  };
  // Moves the calling thread into d0's namespace, where it stays as long as the lab lives; threads
  // and processes that it starts begin there too. kFailedPrecondition: not root, or a tool is
  // missing, or another lab is in use.
  static absl::StatusOr<std::unique_ptr<NetworkLab>> Create(const Options& options);
  // Ends every process inside and removes all namespaces.
  virtual ~NetworkLab() = default;

  // While daemons run. Until the first call links are as fast as the machine.
  virtual absl::Status SetLink(const LinkSpec& link) = 0;
  // Takes about half a second.
  virtual absl::StatusOr<LinkMeasurement> Measure() const = 0;

  // host: "d0", "p0", "p1" …
  static std::string NamespaceOf(const std::string& host);
  static std::string AddressOf(const std::string& host);
  static constexpr const char* kDevice = "eth0";  // the one that daemons shall use
};

}  // namespace lynx
