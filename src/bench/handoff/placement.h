// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lynx/status.h"

namespace lynx {

// The cores that each daemon of a hand-off runs on; empty: all that there are.
struct HandoffPlacement {
  std::vector<int> prefill, decode;
};

// `each` of the cores for either daemon, none for both, as on hosts of their own; 0: all for both.
// kInvalidArgument when there are too few.
absl::StatusOr<HandoffPlacement> PlaceDaemons(const std::vector<int>& cores, int each);

}  // namespace lynx
