// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of the rotary embedding, with every kind of frequency scaling folded in.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lynx/backend.h"
#include "lynx/model_config.h"
#include "lynx/status.h"

namespace lynx {

// Radians per position of each pair of channels, [head_dim / 2], and the factor on q and k.
struct RopeFrequencies {
  std::vector<double> inverse;
  double attention_factor = 1.0;
};
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int head_dim);

// In the back-end's memory. Filled as far as the longest position seen, so that a model's claimed
// context costs no time.
class RopeTables {
 public:
  // Room for positions 0 .. max_position - 1. kResourceExhausted when there is not enough memory.
  static absl::StatusOr<std::unique_ptr<RopeTables>> Create(Backend& backend,
                                                            const RopeConfig& config, int head_dim,
                                                            int max_position);

  // The table, filled for positions 0 .. num_positions - 1 at least.
  RopeTable Covering(int num_positions);

 private:
  RopeTables(Backend& backend, RopeFrequencies frequencies, int max_position)
      : backend_(backend), frequencies_(std::move(frequencies)), max_position_(max_position) {}

  Backend& backend_;
  const RopeFrequencies frequencies_;
  const int max_position_;
  int num_positions_ = 0;  // filled
  Buffer cos_, sin_;       // float [max_position, head_dim / 2]
};

}  // namespace lynx
