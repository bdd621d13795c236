// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/network_lab.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "absl/strings/str_format.h"
#include "bench/lab/delay_line.h"
#include "bench/lab/link_probe.h"
#include "bench/lab/network_namespace.h"

namespace lynx {
namespace {

constexpr char kPrefix[] = "lynxlab-";
constexpr char kSwitch[] = "switch";
constexpr char kLockFile[] = "/run/lynxlab.lock";
constexpr int kMtu = 1500;
// Segments as large as 100 us of the link, so that a port interleaves flows finely, as a NIC does.
constexpr double kSegmentSeconds = 100e-6;
// Tokens for 1 ms: a timer of a busy machine may be that late, and what does not fit is lost rate.
constexpr double kBurstSeconds = 1e-3;
constexpr double kQueueSeconds = 2e-3;
constexpr int kMinQueueBytes = 48 << 10;

// The output of a command of fixed words, names and numbers.
absl::StatusOr<std::string> Run(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "re");
  if (pipe == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("popen: ", strerror(errno)));
  std::string output;
  char buffer[4096];
  while (const size_t size = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, size);
  if (pclose(pipe) == 0) return output;
  return absl::FailedPreconditionError(absl::StrCat("'", command, "' failed: ", output));
}

absl::Status RunAll(const std::vector<std::string>& commands) {
  for (const std::string& command : commands) LYNX_RETURN_IF_ERROR(Run(command).status());
  return absl::OkStatus();
}

absl::Status CheckTools() {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError(
        "shaped links need root (network namespaces); without it: --link none");
  }
  for (const char* tool : {"ip", "tc"}) {
    if (!Run(absl::StrCat("command -v ", tool)).ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("shaped links need the command '", tool,
                       "' (package iproute2); without it: --link none"));
    }
  }
  if (access("/dev/net/tun", R_OK | W_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("shaped links need /dev/net/tun: ", strerror(errno)));
  }
  return absl::OkStatus();
}

// A TUN device in the calling thread's namespace.
absl::StatusOr<int> OpenTun(const std::string& name) {
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0) return fd;
  const int why = errno;
  if (fd >= 0) close(fd);
  return absl::FailedPreconditionError(absl::StrCat("/dev/net/tun: ", strerror(why)));
}

absl::StatusOr<int> OpenTunIn(const std::string& network_namespace, const std::string& name) {
  LYNX_ASSIGN_OR_RETURN(const auto inside, InNetworkNamespace::Enter(network_namespace));
  return OpenTun(name);
}

// Ends what an earlier lab has left, this one's processes included, and removes it.
void RemoveAll() {
  const auto list = Run("ip netns list");
  if (!list.ok()) return;
  std::istringstream lines(*list);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find(' '));
    if (name.rfind(kPrefix, 0) != 0) continue;
    std::istringstream pids(Run("ip netns pids " + name).value_or(""));
    for (pid_t pid = 0; pids >> pid;) {
      if (pid != getpid()) kill(pid, SIGKILL);
    }
    (void)Run("ip netns del " + name);
  }
}

class NetworkLabImpl final : public NetworkLab {
 public:
  NetworkLabImpl(int num_prefill, int lock) : num_prefill_(num_prefill), lock_(lock) {}
  ~NetworkLabImpl() override {
    inside_.reset();
    lines_.clear();
    RemoveAll();
    close(lock_);
  }

  absl::Status Build() {
    LYNX_RETURN_IF_ERROR(RunAll(
        {"ip netns add " + NamespaceOf(kSwitch),
         absl::StrFormat("ip -n %s link add br0 type bridge forward_delay 0 mcast_snooping 0",
                         NamespaceOf(kSwitch)),
         absl::StrFormat("ip -n %s link set br0 up", NamespaceOf(kSwitch))}));
    LYNX_RETURN_IF_ERROR(AddHost("d0"));
    for (int i = 0; i < num_prefill_; ++i) {
      LYNX_RETURN_IF_ERROR(AddHost(Prefill(i)));
      LYNX_RETURN_IF_ERROR(AddWayBack(i));
    }
    LYNX_ASSIGN_OR_RETURN(inside_, InNetworkNamespace::Enter(NamespaceOf("d0")));
    return absl::OkStatus();
  }

  absl::Status SetLink(const LinkSpec& link) override {
    link_ = link;
    const std::chrono::nanoseconds delay(std::llround(link.rtt_s * 1e9));
    LYNX_RETURN_IF_ERROR(Shape(kSwitch, "d0", link.bits_per_second));
    for (int i = 0; i < num_prefill_; ++i) {
      LYNX_RETURN_IF_ERROR(Shape(Prefill(i), kDevice, link.bits_per_second));
      LYNX_RETURN_IF_ERROR(Shape("d0", WayBack(i), link.bits_per_second));
      lines_[i]->set_delay(delay);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LinkMeasurement> Measure() const override {
    return ProbeLink(NamespaceOf("p0"), NamespaceOf("d0"), AddressOf("d0"), link_.bits_per_second);
  }

 private:
  static std::string Prefill(int i) { return absl::StrCat("p", i); }
  static std::string WayBack(int i) { return absl::StrCat("back", i); }

  static absl::Status AddHost(const std::string& host) {
    const std::string ns = NamespaceOf(host), sw = NamespaceOf(kSwitch);
    return RunAll(
        {"ip netns add " + ns,
         // Packets come in by another device than answers leave by.
         absl::StrFormat("ip netns exec %s sh -c 'echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; "
                         "echo 0 > /proc/sys/net/ipv4/conf/default/rp_filter; "
                         "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 || true; "
                         "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control || true'",
                         ns),
         absl::StrFormat("ip -n %s link set lo up", ns),
         absl::StrFormat("ip link add %s netns %s mtu %d type veth peer name %s netns %s mtu %d",
                         kDevice, ns, kMtu, host, sw, kMtu),
         absl::StrFormat("ip -n %s addr add %s/24 dev %s", ns, AddressOf(host), kDevice),
         absl::StrFormat("ip -n %s link set %s master br0 up", sw, host),
         absl::StrFormat("ip -n %s link set %s up", ns, kDevice)});
  }

  absl::Status AddWayBack(int i) {
    const std::string near = NamespaceOf("d0"), far = NamespaceOf(Prefill(i));
    LYNX_ASSIGN_OR_RETURN(const int from, OpenTunIn(near, WayBack(i)));
    const absl::StatusOr<int> to = OpenTunIn(far, "back");
    if (!to.ok()) {
      close(from);
      return to.status();
    }
    LYNX_ASSIGN_OR_RETURN(auto line, DelayLine::Create(from, *to));
    lines_.push_back(std::move(line));
    return RunAll({absl::StrFormat("ip -n %s link set back mtu %d up", far, kMtu),
                   absl::StrFormat("ip -n %s link set %s mtu %d up", near, WayBack(i), kMtu),
                   absl::StrFormat("ip -n %s route add %s/32 dev %s src %s", near,
                                   AddressOf(Prefill(i)), WayBack(i), AddressOf("d0"))});
  }

  // The sending side of a port.
  static absl::Status Shape(const std::string& host, const std::string& device, double bps) {
    const double bytes_per_second = bps / 8;
    const int segment =
        static_cast<int>(std::clamp(bytes_per_second * kSegmentSeconds, 2.0 * kMtu, 65536.0));
    const int burst = std::max(static_cast<int>(bytes_per_second * kBurstSeconds), segment + 200);
    const int queue = std::max(static_cast<int>(bytes_per_second * kQueueSeconds), kMinQueueBytes);
    const std::string ns = NamespaceOf(host);
    return RunAll(
        {absl::StrFormat("ip -n %s link set %s gso_max_size %d", ns, device, segment),
         absl::StrFormat("tc -n %s qdisc replace dev %s root tbf rate %.0fbit burst %d limit %d",
                         ns, device, bps, burst, queue)});
  }

  const int num_prefill_;
  const int lock_;  // descriptor of the locked file
  LinkSpec link_;
  std::vector<std::unique_ptr<DelayLine>> lines_;
  std::unique_ptr<InNetworkNamespace> inside_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NetworkLab>> NetworkLab::Create(const Options& options) {
  LYNX_RETURN_IF_ERROR(CheckTools());
  const int lock = open(kLockFile, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) != 0) {
    const int why = errno;
    if (lock >= 0) close(lock);
    return absl::FailedPreconditionError(
        why == EWOULDBLOCK ? "another lab of shaped links is in use on this machine"
                           : absl::StrCat(kLockFile, ": ", strerror(why)));
  }
  RemoveAll();
  auto lab = std::make_unique<NetworkLabImpl>(options.num_prefill, lock);
  LYNX_RETURN_IF_ERROR(lab->Build());
  return lab;
}

std::string NetworkLab::NamespaceOf(const std::string& host) { return absl::StrCat(kPrefix, host); }

std::string NetworkLab::AddressOf(const std::string& host) {
  if (host == "d0") return "10.78.0.200";
  return absl::StrCat("10.78.0.", 1 + std::atoi(host.c_str() + 1));
}

}  // namespace lynx
