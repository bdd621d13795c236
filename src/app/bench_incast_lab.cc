// SPDX-License-Identifier: Apache-2.0
#include "app/bench_incast_lab.h"

#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_split.h"

extern char** environ;

namespace lynx {
namespace {

constexpr char kPrefix[] = "lynx-incast-";
constexpr char kNamespaces[] = "/var/run/netns";
constexpr double kQueueSeconds = 2e-3;
// A late timer on a busy machine must not cost rate.
constexpr double kBurstSeconds = 300e-6;
// Two flows interleave this finely, as behind a real network card.
constexpr double kSegmentSeconds = 100e-6;

absl::Status Run(const std::string& command) {
  std::vector<std::string> words = absl::StrSplit(command, ' ', absl::SkipEmpty());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    return absl::FailedPreconditionError(absl::StrCat(words[0], ": ", std::strerror(error)));
  }
  int status = 0;
  if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("failed: ", command));
}

absl::Status RunAll(const std::vector<std::string>& commands) {
  for (const std::string& command : commands) LYNX_RETURN_IF_ERROR(Run(command));
  return absl::OkStatus();
}

void RemoveLeftovers() {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator it(kNamespaces, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    if (name.rfind(kPrefix, 0) == 0) names.push_back(name);
  }
  for (const std::string& name : names) (void)Run("ip netns del " + name);
}

// The transmit side of a port.
std::vector<std::string> Shape(const std::string& name_space, const std::string& device,
                               double bits_per_second) {
  const double rate = bits_per_second / 8;
  const auto segment = static_cast<int64_t>(std::clamp(rate * kSegmentSeconds, 3028.0, 65536.0));
  const auto burst = std::max(static_cast<int64_t>(rate * kBurstSeconds), segment + 200);
  const auto queue = std::max<int64_t>(49152, static_cast<int64_t>(rate * kQueueSeconds));
  return {absl::StrCat("ip -n ", name_space, " link set ", device, " gso_max_size ", segment),
          absl::StrCat("tc -n ", name_space, " qdisc add dev ", device, " root tbf rate ",
                       static_cast<int64_t>(bits_per_second), " burst ", burst, " limit ", queue)};
}

std::vector<std::string> HostCommands(const std::string& host, int index, const std::string& hub,
                                      double bits_per_second) {
  const std::string port = absl::StrCat("h", index);
  std::vector<std::string> commands = {
      "ip netns add " + host,
      absl::StrCat("ip link add eth0 netns ", host, " type veth peer name ", port, " netns ", hub),
      absl::StrCat("ip -n ", host, " addr add 10.78.0.", index + 1, "/24 dev eth0")};
  for (const auto& shape :
       {Shape(host, "eth0", bits_per_second), Shape(hub, port, bits_per_second)}) {
    commands.insert(commands.end(), shape.begin(), shape.end());
  }
  commands.insert(commands.end(),
                  {absl::StrCat("ip -n ", hub, " link set ", port, " master br0 up"),
                   absl::StrCat("ip -n ", host, " link set eth0 up"),
                   absl::StrCat("ip -n ", host, " link set lo up")});
  return commands;
}

absl::Status Errno(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<IncastLab> IncastLab::Create(int num_hosts, double bits_per_second) {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError(
        "shaped links are made of network namespaces, which need root; --link none does without");
  }
  RemoveLeftovers();
  IncastLab lab;
  const std::string hub = absl::StrCat(kPrefix, "switch");
  for (int i = 0; i < num_hosts; ++i) lab.namespaces_.push_back(absl::StrCat(kPrefix, i));
  lab.namespaces_.push_back(hub);
  LYNX_RETURN_IF_ERROR(RunAll({"ip netns add " + hub,
                               absl::StrCat("ip -n ", hub,
                                            " link add br0 type bridge forward_delay 0 "
                                            "mcast_snooping 0"),
                               absl::StrCat("ip -n ", hub, " link set br0 up")}));
  for (int i = 0; i < num_hosts; ++i) {
    LYNX_RETURN_IF_ERROR(RunAll(HostCommands(lab.namespaces_[i], i, hub, bits_per_second)));
  }
  return lab;
}

IncastLab::~IncastLab() {
  for (const std::string& name : namespaces_) {
    std::error_code error;
    if (std::filesystem::exists(absl::StrCat(kNamespaces, "/", name), error)) {
      (void)Run("ip netns del " + name);
    }
  }
}

absl::Status IncastLab::Enter(int host) const {
  const std::string path = absl::StrCat(kNamespaces, "/", namespaces_[host]);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Errno(path);
  const bool entered = setns(fd, CLONE_NEWNET) == 0;
  close(fd);
  if (!entered) return Errno("setns " + path);
  // UCX looks for network devices in /sys, which shows those of the namespace it was mounted in.
  if (unshare(CLONE_NEWNS) != 0 || mount("", "/", "none", MS_SLAVE | MS_REC, nullptr) != 0) {
    return Errno("a mount namespace");
  }
  umount2("/sys", MNT_DETACH);
  if (mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) return Errno("mounting /sys");
  return absl::OkStatus();
}

}  // namespace lynx
