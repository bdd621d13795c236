// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace lynx::cpu {

// Bytes that this process could still take without swapping: MemAvailable of /proc/meminfo, or what
// the memory.max of its control group (cgroup v2) or of one above leaves, if that is less. 0 when
// the kernel does not say. `root` stands before the paths of /proc and /sys, for tests.
int64_t AvailableMemory(const std::string& root = "");

}  // namespace lynx::cpu
