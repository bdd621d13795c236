// SPDX-License-Identifier: Apache-2.0
// `lynx bench codec`: speed of the KV codecs, beside the bound that the same run measured.
#pragma once

#include <string>
#include <vector>

#include "core/cluster_config.h"

namespace lynx {

struct BenchCodecOptions {
  ClusterConfig config;  // cpu_target
  std::vector<std::string> codecs;
  int head_dim = 64;
  int num_pages = 64;  // of 256 tokens
  int repeats = 5;
};
absl::Status RunBenchCodec(const BenchCodecOptions& options);

}  // namespace lynx
