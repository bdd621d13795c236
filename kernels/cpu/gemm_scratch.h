// SPDX-License-Identifier: Apache-2.0
// Memory that Gemm keeps between calls. It grows to the largest call seen and then stays, so that a
// decode step allocates nothing.
#pragma once

#include <vector>

#include "kernels/cpu/aligned_array.h"
#include "kernels/cpu/panel_runs.h"

namespace lynx::cpu {

// The activations of one call in the forms that its weights need. All three are cut into row groups
// and laid out [group][block of 32 inputs][row of the group][32]; see gemm_kernels.h.
struct GemmActivations {
  ScratchArray<float> floats;  // as they are, or what round_rows made of them
  ScratchArray<int8_t> codes;  // 8-bit
  ScratchArray<float> scales;  // [group][block][row]
  ScratchArray<float> scaled_sums;
  ScratchArray<int32_t> sums;
};

struct GemmThreadScratch {
  ScratchArray<float> acc;     // finished sums before they go to y
  ScratchArray<float> panels;  // float32 weights, [panel][k][16]
  ScratchArray<float> rows;    // the same before transposition, [16][k]
  int tile_rows = 0;           // see Bf16Kernels::release
};

struct GemmScratch {
  GemmActivations activations;
  PanelRuns runs;
  std::vector<GemmThreadScratch> threads;
};

}  // namespace lynx::cpu
