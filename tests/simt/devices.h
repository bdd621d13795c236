// SPDX-License-Identifier: Apache-2.0
// How many devices there are and which memory each reaches.
#pragma once

#include <cstdint>

namespace lynx::simt {

inline constexpr int kMaxDevices = 8;

int NumDevices();
int CurrentDevice();  // the calling thread's
// Bit d: kernels of the device may follow pointers into device d's memory.
uint64_t ReachableDevices(int device);

}  // namespace lynx::simt
