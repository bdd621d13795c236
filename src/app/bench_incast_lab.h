// SPDX-License-Identifier: Apache-2.0
// Hosts on one machine: network namespaces, each with a cable to one switch. A cable carries
// `bits_per_second` each way and its ports hold 2 ms of that, so the receiver's cable is what its
// senders share.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lynx/status.h"

namespace lynx {

class IncastLab {
 public:
  // Removes what a run that was killed has left. kFailedPrecondition: not root, or a command that
  // it needs (ip, tc, sysctl) failed.
  static absl::StatusOr<IncastLab> Create(int num_hosts, double bits_per_second);
  IncastLab(IncastLab&& other) noexcept : namespaces_(std::exchange(other.namespaces_, {})) {}
  IncastLab& operator=(IncastLab&&) = delete;
  ~IncastLab();

  // The calling process lives on this host from here on; threads that it has stay where they are.
  absl::Status Enter(int host) const;

 private:
  IncastLab() = default;
  std::vector<std::string> namespaces_;  // the hosts', then the switch's
};

}  // namespace lynx
