// SPDX-License-Identifier: Apache-2.0
#include "rpc/connection_acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace lynx {
namespace {

// When the process is out of descriptors.
constexpr int kPauseMs = 100;
// A peer whose machine has gone without a word is noticed after this idle time and three probes.
constexpr int kIdleSeconds = 30, kProbeSeconds = 5, kNumProbes = 3;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// What a socket lacks then, it can do without.
void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

// A listening socket, or -1 with errno.
int ListenAt(const addrinfo& at) {
  const int fd = socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.ai_family == AF_INET6) SetOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd, at.ai_addr, at.ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  const int why = errno;
  close(fd);
  errno = why;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(
    const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool everywhere = host.empty() || host == "0.0.0.0" || host == "::";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(everywhere ? nullptr : host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(address, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> list(found);
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor);
  int why = 0;
  // A socket of IPv6 on all interfaces is one of IPv4, too; the other order would exclude it.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      if (at->ai_family != family) continue;
      if (everywhere && !acceptor->listeners_.empty()) continue;
      const int fd = ListenAt(*at);
      if (fd >= 0) acceptor->listeners_.push_back(fd);
      // What the machine has no address of is no reason to complain about the others.
      if (fd < 0 && (why == 0 || errno == EADDRINUSE)) why = errno;
    }
  }
  acceptor->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (acceptor->listeners_.empty() || why == EADDRINUSE || acceptor->wake_fd_ < 0) {
    return absl::UnavailableError(
        absl::StrCat(address, ": cannot listen there: ", std::strerror(why != 0 ? why : errno)));
  }
  return acceptor;
}

ConnectionAcceptor::~ConnectionAcceptor() {
  if (thread_.joinable()) {
    eventfd_write(wake_fd_, 1);
    thread_.join();
  }
  for (const int fd : listeners_) close(fd);
  if (wake_fd_ >= 0) close(wake_fd_);
}

void ConnectionAcceptor::Start(std::function<void(int socket)> take) {
  take_ = std::move(take);
  thread_ = std::thread([this] { Loop(); });
}

void ConnectionAcceptor::Loop() {
  std::vector<pollfd> polled;
  for (const int fd : listeners_) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  polled.push_back({.fd = wake_fd_, .events = POLLIN, .revents = 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // a signal
    if (polled.back().revents != 0) return;
    bool pause = false;
    for (size_t i = 0; i + 1 < polled.size(); ++i) {
      if (polled[i].revents != 0 && !AcceptAll(polled[i].fd)) pause = true;
    }
    if (pause && poll(&polled.back(), 1, kPauseMs) > 0) return;
  }
}

// False when there are more that cannot be accepted now.
bool ConnectionAcceptor::AcceptAll(int listener) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
      SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
      SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
      SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
      SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kNumProbes);
      take_(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    }  // else a connection that has ended already
  }
}

}  // namespace lynx
