// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "lynx/status.h"

namespace lynx {

// Moves the calling thread into a network namespace of `ip netns`, and back when this dies, which
// must be on the same thread. Threads and processes started in between begin there.
class InNetworkNamespace {
 public:
  static absl::StatusOr<std::unique_ptr<InNetworkNamespace>> Enter(const std::string& name);
  ~InNetworkNamespace();
  InNetworkNamespace(const InNetworkNamespace&) = delete;

 private:
  explicit InNetworkNamespace(int home) : home_(home) {}
  const int home_;
};

}  // namespace lynx
