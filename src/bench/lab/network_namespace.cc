// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/network_namespace.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lynx {

absl::StatusOr<std::unique_ptr<InNetworkNamespace>> InNetworkNamespace::Enter(
    const std::string& name) {
  const std::string path = absl::StrCat("/var/run/netns/", name);
  const int home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = home >= 0 && there >= 0 && setns(there, CLONE_NEWNET) == 0;
  const int why = errno;
  if (there >= 0) close(there);
  if (ok) return std::unique_ptr<InNetworkNamespace>(new InNetworkNamespace(home));
  if (home >= 0) close(home);
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(why)));
}

InNetworkNamespace::~InNetworkNamespace() {
  LYNX_CHECK(setns(home_, CLONE_NEWNET) == 0);
  close(home_);
}

}  // namespace lynx
