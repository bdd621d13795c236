// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace lynx {

// A random, non-zero name for one life of a transport.
inline uint64_t RandomEpoch() {
  std::random_device entropy;
  while (true) {
    const uint64_t epoch = (uint64_t{entropy()} << 32) | entropy();
    if (epoch != 0) return epoch;
  }
}

}  // namespace lynx
