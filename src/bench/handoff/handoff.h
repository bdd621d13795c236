// SPDX-License-Identifier: Apache-2.0
// `lynx bench handoff`: hand-offs over given links, every codec side by side.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/cluster_config.h"
#include "lynx/status.h"

namespace lynx {

struct BenchHandoffOptions {
  ClusterConfig config;  // model, compute, cpu_target, kv.anchor_table
  std::vector<std::string> link = {"200mbit", "1gbit", "5gbit"};
  std::vector<std::string> rtt = {"0.2ms"};
  std::vector<int> prompt_tokens = {1024, 4096, 7500};
  std::vector<std::string> codecs = {"bf16", "int8", "int4", "planes"};
  std::vector<std::string> verify = {"auto"};
  std::vector<std::string> anchor = {"default"};
  std::string busy = "both";  // idle, busy: the prefill side
  int threads = 2;            // of each daemon
  int repeat = 3;
  int max_tokens = 65;  // token 1 and the 64 that decoding writes
  std::string corpus = "bench/prompts";
  std::string json;
  bool prefill_cached = false;
  bool own_cores = false;  // each daemon has `threads` cores of its own
  bool list = false;
};
void AddBenchHandoffFlags(CLI::App& command, BenchHandoffOptions* options);

// Prints one JSON object a cell (docs/results/README.md), and progress on stderr.
absl::Status RunBenchHandoff(const BenchHandoffOptions& options);

}  // namespace lynx
