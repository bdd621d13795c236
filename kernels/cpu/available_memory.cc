// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/available_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace lynx::cpu {
namespace {

constexpr int64_t kNone = -1;

// The first number of a file; kNone when there is none ("max").
int64_t NumberIn(const std::string& path) {
  std::ifstream in(path);
  int64_t value = kNone;
  return in >> value ? value : kNone;
}

int64_t MemAvailable(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

// The path of "0::/path" in /proc/self/cgroup; empty for the root group or without cgroup v2.
std::string ControlGroup(const std::string& root) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::/", 0) == 0) return line.size() == 4 ? "" : line.substr(3);
  }
  return "";
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  int64_t available = MemAvailable(root);
  if (available == 0) return 0;
  std::string group = ControlGroup(root);
  while (true) {
    const std::string directory = root + "/sys/fs/cgroup" + group;
    const int64_t limit = NumberIn(directory + "/memory.max");
    const int64_t used = NumberIn(directory + "/memory.current");
    if (limit != kNone && used != kNone) {
      available = std::min(available, std::max<int64_t>(0, limit - used));
    }
    if (group.empty()) return available;
    group.resize(group.rfind('/'));
  }
}

}  // namespace lynx::cpu
