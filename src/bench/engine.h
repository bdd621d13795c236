// SPDX-License-Identifier: Apache-2.0
// `lynx bench engine`: speed of the forward pass, beside the bound that the same run measured.
#pragma once

#include <vector>

#include "core/cluster_config.h"

namespace lynx {

struct BenchEngineOptions {
  ClusterConfig config;  // model, compute, cpu_target
  int threads = 0;
  std::vector<int> prefill = {512};  // prompt lengths
  std::vector<int> depth = {0};      // tokens already in the cache when decoding
  std::vector<int> batch = {1};      // sequences decoded together
  int repeats = 5;
};
absl::Status RunBenchEngine(const BenchEngineOptions& options);

}  // namespace lynx
