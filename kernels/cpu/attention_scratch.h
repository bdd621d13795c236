// SPDX-License-Identifier: Apache-2.0
// Memory that attention keeps between calls, so that a decode step allocates nothing.
#pragma once

#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace lynx::cpu {

struct CpuBackend::AttentionScratch {
  std::vector<float> partials;
};

}  // namespace lynx::cpu
