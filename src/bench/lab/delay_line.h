// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "lynx/status.h"

namespace lynx {

// Takes IP packets from one network device and gives them to another after a while, in order.
class DelayLine {
 public:
  // from, to: descriptors of TUN devices (IFF_TUN | IFF_NO_PI), which it closes in the end. The
  // delay is zero until it is set.
  static absl::StatusOr<std::unique_ptr<DelayLine>> Create(int from, int to);
  virtual ~DelayLine() = default;
  virtual void set_delay(std::chrono::nanoseconds delay) = 0;  // any thread; of later packets
};

}  // namespace lynx
