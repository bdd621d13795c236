// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of one head, half-split: with a = x[i], b = x[i + head_dim / 2],
//   x[i] = fma(−b, sin, a · cos),   x[i + head_dim / 2] = fma(a, sin, b · cos).
#pragma once

namespace lynx::cpu {

// cos and sin hold head_dim / 2 elements: the table's row of this position.
void RopeHeadRef(float* x, const float* cos, const float* sin, int head_dim);

}  // namespace lynx::cpu
