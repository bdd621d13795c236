// SPDX-License-Identifier: Apache-2.0
// Accepts the TCP connections of a gRPC server, which then has no listener of its own: gRPC 1.51
// aborts the process when a listener is shut down while a connection that it has accepted is still
// being set up (grpc/grpc#37225, #37683). Ending the acceptor first leaves the server with
// connections only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lynx/status.h"

namespace lynx {

class ConnectionAcceptor {
 public:
  // Listens on every address that "host:port" names: a name, an IPv4 address or one of IPv6 in
  // brackets; no host, 0.0.0.0 and [::] are all interfaces. kInvalidArgument: that is none;
  // kUnavailable: none of them can be listened on.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const std::string& address);
  ~ConnectionAcceptor();
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Once. `take` becomes the owner of a non-blocking socket; on a thread of the acceptor's, not any
  // more when it is destroyed.
  void Start(std::function<void(int socket)> take);

 private:
  ConnectionAcceptor() = default;
  void Loop();
  bool AcceptAll(int listener);

  std::vector<int> listeners_;
  int wake_fd_ = -1;  // an eventfd: the thread shall end
  std::function<void(int socket)> take_;
  std::thread thread_;
};

}  // namespace lynx
