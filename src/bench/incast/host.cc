// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/host.h"

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/lab/network_lab.h"
#include "bench/lab/network_namespace.h"

namespace lynx {

absl::Status MoveToHost(const std::string& host) {
  const std::string name = NetworkLab::NamespaceOf(host);
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<InNetworkNamespace> inside,
                        InNetworkNamespace::Enter(name));
  (void)inside.release();  // for good
  // UCX looks for devices in /sys, which shows those of the namespace that it was mounted in.
  const bool mounted =
      unshare(CLONE_NEWNS) == 0 && mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) == 0 &&
      umount2("/sys", MNT_DETACH) == 0 && mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0;
  if (!mounted) {
    return absl::FailedPreconditionError(
        absl::StrCat("the /sys of ", name, ": ", std::strerror(errno)));
  }
  setenv("UCX_NET_DEVICES", NetworkLab::kDevice, /*overwrite=*/0);
  return absl::OkStatus();
}

}  // namespace lynx
