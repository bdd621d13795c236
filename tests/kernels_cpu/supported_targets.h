// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "kernels/cpu/target.h"

namespace lynx::cpu {

// The targets that this machine has, the scalar one first.
inline std::vector<Target> SupportedTargets() {
  std::vector<Target> targets;
  for (const char* name : kTargetNames) {
    const Target target = *FindTarget(name);
    if (target != Target::kAuto && Supports(target)) targets.push_back(target);
  }
  return targets;
}

}  // namespace lynx::cpu
