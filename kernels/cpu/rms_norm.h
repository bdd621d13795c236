// SPDX-License-Identifier: Apache-2.0
// One vector: s = Σ x² in 16 virtual lanes (fma into lane i % 16, joined by SumLanesRef), then
// y = (x · (1 / √(s / dim + eps))) · weight. Moves 12 bytes per element.
#pragma once

namespace lynx::cpu {

// y may be x. Any dim >= 1.
void RmsNormRowRef(const float* x, const float* weight, float eps, int dim, float* y);

}  // namespace lynx::cpu
