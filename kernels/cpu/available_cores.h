// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace lynx::cpu {

// The numbers of the cores that the calling thread may run on, in ascending order; empty when the
// kernel does not say.
std::vector<int> AvailableCores();

}  // namespace lynx::cpu
