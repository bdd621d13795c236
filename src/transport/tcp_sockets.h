// SPDX-License-Identifier: Apache-2.0
// The TCP sockets of this process, found by a walk over its file descriptors: UCX 1.13 has no
// options for what is set here.
#pragma once

#include <cstdint>
#include <set>

namespace lynx {

// Ports that this process listens on.
std::set<uint16_t> ListeningPorts();

inline constexpr int kTcpRtoMinUs = 45;  // TCP_RTO_MIN_US, which older headers do not have

struct TcpMarks {
  int type_of_service = 0;  // IP_TOS; 0 = leave
  int user_timeout_ms = 0;  // TCP_USER_TIMEOUT; 0 = leave
  // How long at least until a lost message that nothing follows is sent again: TCP_RTO_MIN_US of
  // Linux 6.15 (elsewhere nothing changes, and it is 200 ms); 0 = leave.
  int min_retransmit_us = 0;
};
// Sets them on every connected socket that has one of the ports at either end.
void MarkSockets(const std::set<uint16_t>& ports, const TcpMarks& marks);

}  // namespace lynx
