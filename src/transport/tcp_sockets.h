// SPDX-License-Identifier: Apache-2.0
// The TCP sockets of this process, found by a walk over its file descriptors: UCX 1.13 has no
// options for what is set here.
#pragma once

#include <cstdint>
#include <set>

namespace lynx {

// Ports that this process listens on.
std::set<uint16_t> ListeningPorts();

struct TcpMarks {
  int type_of_service = 0;  // IP_TOS; 0 = leave
  int user_timeout_ms = 0;  // TCP_USER_TIMEOUT; 0 = leave
};
// Sets them on every connected socket that has one of the ports at either end.
void MarkSockets(const std::set<uint16_t>& ports, const TcpMarks& marks);

}  // namespace lynx
