// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace lynx {

// When each of num_requests requests is due, in ns from the start, ascending, as `vllm bench serve`
// has it: gaps of a gamma distribution with mean 1 / rate and shape `burstiness` (1 is a Poisson
// process, less comes in bursts, infinity is a metronome), stretched so that the last request is
// due at num_requests / rate whatever the seed. rate > 0 per second; infinity: all at once.
std::vector<int64_t> ArrivalTimes(int num_requests, double rate, double burstiness, uint64_t seed);

}  // namespace lynx
