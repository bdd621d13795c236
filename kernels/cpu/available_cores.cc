// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/available_cores.h"

#include <sched.h>

namespace lynx::cpu {

std::vector<int> AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace lynx::cpu
