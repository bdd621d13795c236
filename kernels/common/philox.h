// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, a counter-based random number generator (Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", SC 2011): the same key and counter give the same four words anywhere.
#pragma once

#include <array>
#include <cstdint>

namespace lynx {

constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint32_t key0,
                                             uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xd2511f53} * counter[0];
    const uint64_t p1 = uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
  return counter;
}

// The words for four neighbouring tokens, 4 * group .. 4 * group + 3, at one position of a
// sequence. One word is all the randomness a (seed, position, token) has.
constexpr std::array<uint32_t, 4> TokenNoise(uint64_t seed, int64_t position, uint32_t group) {
  const auto p = static_cast<uint64_t>(position);
  return Philox4x32({group, static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0},
                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

}  // namespace lynx
