// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of the rotary embedding, with every kind of frequency scaling folded in.
#pragma once

#include <vector>

#include "lynx/backend.h"
#include "lynx/model_config.h"

namespace lynx {

// Radians per position of each pair of channels, [head_dim / 2], and the factor on q and k.
struct RopeFrequencies {
  std::vector<double> inverse;
  double attention_factor = 1.0;
};
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int head_dim);

// Grows with the longest position seen, so that a model's claimed context costs nothing.
class RopeTables {
 public:
  RopeTables(const RopeConfig& config, int head_dim);

  // A table for positions 0 .. num_positions - 1 at least; valid until the next call.
  RopeTable Covering(int num_positions);

 private:
  RopeFrequencies frequencies_;
  int num_positions_ = 0;
  std::vector<float> cos_, sin_;  // [num_positions, head_dim / 2]
};

}  // namespace lynx
