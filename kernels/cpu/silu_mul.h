// SPDX-License-Identifier: Apache-2.0
// y = gate / (1 + exp(−gate)) · up, with the exp of math_ref.h. Moves 12 bytes per element.
#pragma once

#include <cstdint>

namespace lynx::cpu {

// y may be gate or up.
void SiluMulRangeRef(const float* gate, const float* up, int64_t n, float* y);

}  // namespace lynx::cpu
