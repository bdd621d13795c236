// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/placement.h"

namespace lynx {

absl::StatusOr<HandoffPlacement> PlaceDaemons(const std::vector<int>& cores, int each) {
  if (std::ssize(cores) < 2 * each) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--own-cores: ", each, " cores for each of two daemons, but there are ", cores.size()));
  }
  return HandoffPlacement{.prefill = {cores.begin(), cores.begin() + each},
                          .decode = {cores.begin() + each, cores.begin() + 2 * each}};
}

}  // namespace lynx
