// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process and read each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "lynx/collective.h"

namespace lynx::cpu {

// A group of `size` ranks, in rank order.
std::vector<std::unique_ptr<Collective>> MakeThreadCollectives(int size);

}  // namespace lynx::cpu
