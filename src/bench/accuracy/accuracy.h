// SPDX-License-Identifier: Apache-2.0
// `lynx bench accuracy`: what each codec does to a model's answers.
#pragma once

#include <string>
#include <vector>

#include "core/cluster_config.h"

namespace lynx {

struct BenchAccuracyOptions {
  ClusterConfig config;  // model, compute, cpu_target
  int threads = 0;
  std::vector<std::string> codecs;  // empty: all
  std::vector<std::string> planes = {"k2v2", "k3v2", "k3v3", "k4v2",
                                     "k4v3", "k4v4", "k8v8", "exact"};  // prefixes of `planes`
  std::vector<int> prompt_tokens = {1024, 4096, 7500};
  int prompts = 40;  // of each length
  bool per_layer = false;
  std::string corpus = "bench/prompts";  // directory of text files
};
absl::Status RunBenchAccuracy(const BenchAccuracyOptions& options);

}  // namespace lynx
