// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "simt/launch.h"

namespace lynx::simt {

inline constexpr char kNoFault[] = "no fault";

// What the emulated device says is wrong with a call.
template <typename Call>
std::string FaultOf(const Call& call) {
  try {
    call();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return kNoFault;
}

}  // namespace lynx::simt
