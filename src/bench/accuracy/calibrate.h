// SPDX-License-Identifier: Apache-2.0
// `lynx calibrate`: the anchor's widths for one model, by what each layer's keys and values cost in
// 2 bits when everything else is exact.
#pragma once

#include <string>

#include "core/cluster_config.h"

namespace lynx {

struct CalibrateOptions {
  ClusterConfig config;  // model, cache_dir, compute, cpu_target
  int threads = 0;
  int prompt_tokens = 1024;
  int prompts = 4;
  double bits = 2.75;  // average code bits of the anchor
  std::string corpus = "bench/prompts";
  std::string output;  // file to write; empty: where the daemons look for it (app/anchor_table.h)
};

// Prints one JSON object per layer (key_damage, value_damage in nats, key_bits, value_bits) and
// writes the table (codec/anchor_widths.h).
absl::Status RunCalibrate(const CalibrateOptions& options);

}  // namespace lynx
