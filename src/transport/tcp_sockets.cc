// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <vector>

namespace lynx {
namespace {

// Every descriptor that was open at the time; some may be closed or reused by now.
std::vector<int> OpenDescriptors() {
  std::vector<int> descriptors;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    int fd = -1;
    const auto [last, code] = std::from_chars(name.data(), name.data() + name.size(), fd);
    if (code == std::errc() && last == name.data() + name.size()) descriptors.push_back(fd);
  }
  return descriptors;
}

int IntOption(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return getsockopt(fd, level, option, &value, &size) == 0 ? value : -1;
}

using AddressCall = int (*)(int, sockaddr*, socklen_t*);

// 0 when the socket has no such address.
uint16_t Port(int fd, AddressCall call) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (call(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

bool IsTcp(int fd) {
  const int domain = IntOption(fd, SOL_SOCKET, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) &&
         IntOption(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM;
}

}  // namespace

std::set<uint16_t> ListeningPorts() {
  std::set<uint16_t> ports;
  for (int fd : OpenDescriptors()) {
    if (IsTcp(fd) && IntOption(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1) {
      ports.insert(Port(fd, getsockname));
    }
  }
  return ports;
}

void MarkSockets(const std::set<uint16_t>& ports, const TcpMarks& marks) {
  for (int fd : OpenDescriptors()) {
    if (!IsTcp(fd)) continue;
    const uint16_t remote = Port(fd, getpeername);
    if (remote == 0) continue;
    if (!ports.contains(remote) && !ports.contains(Port(fd, getsockname))) continue;
    if (marks.min_retransmit_us != 0) {
      setsockopt(fd, IPPROTO_TCP, kTcpRtoMinUs, &marks.min_retransmit_us, sizeof(int));
    }
    if (marks.type_of_service != 0) {
      setsockopt(fd, IPPROTO_IP, IP_TOS, &marks.type_of_service, sizeof(int));
    }
    if (marks.user_timeout_ms != 0) {
      setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &marks.user_timeout_ms, sizeof(int));
    }
  }
}

}  // namespace lynx
