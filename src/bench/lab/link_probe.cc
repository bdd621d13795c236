// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/link_probe.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <future>
#include <vector>

#include "bench/lab/network_namespace.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/write.hpp"
#include "core/clock.h"

namespace lynx {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int kNumPings = 21;
constexpr double kProbeSeconds = 0.4;
constexpr size_t kBufferBytes = 256 << 10;
constexpr int64_t kMinBytes = 1 << 20, kMaxBytes = 512 << 20;

// Answers the median round trip in seconds.
double Ping(tcp::socket& socket) {
  char byte = 0;
  std::vector<int64_t> rtt_ns;
  for (int i = 0; i < kNumPings; ++i) {
    const int64_t begin = MonotonicNs();
    asio::write(socket, asio::buffer(&byte, 1));
    asio::read(socket, asio::buffer(&byte, 1));
    rtt_ns.push_back(MonotonicNs() - begin);
  }
  std::sort(rtt_ns.begin(), rtt_ns.end());
  return static_cast<double>(rtt_ns[kNumPings / 2]) / 1e9;
}

void Pong(tcp::socket& socket) {
  char byte = 0;
  for (int i = 0; i < kNumPings; ++i) {
    asio::read(socket, asio::buffer(&byte, 1));
    asio::write(socket, asio::buffer(&byte, 1));
  }
}

void Send(tcp::socket& socket, int64_t num_bytes) {
  const std::vector<char> buffer(kBufferBytes);
  for (int64_t left = num_bytes; left > 0; left -= static_cast<int64_t>(kBufferBytes)) {
    const size_t size = std::min<size_t>(kBufferBytes, static_cast<size_t>(left));
    asio::write(socket, asio::buffer(buffer.data(), size));
  }
}

// Answers bits per second.
double Receive(tcp::socket& socket, int64_t num_bytes) {
  std::vector<char> buffer(kBufferBytes);
  int64_t received = 0, begin_ns = 0, begin_bytes = 0;
  while (received < num_bytes) {
    received += static_cast<int64_t>(socket.read_some(asio::buffer(buffer)));
    if (begin_ns == 0 && received >= num_bytes / 4) {
      begin_ns = MonotonicNs();
      begin_bytes = received;
    }
  }
  return 8e9 * static_cast<double>(received - begin_bytes) /
         static_cast<double>(MonotonicNs() - begin_ns);
}

// A socket stays in the namespace where it was opened.
absl::Status Connect(const std::string& from, tcp::socket& socket, const tcp::endpoint& to) {
  LYNX_ASSIGN_OR_RETURN(const auto inside, InNetworkNamespace::Enter(from));
  socket.connect(to);
  socket.set_option(tcp::no_delay(true));
  return absl::OkStatus();
}

absl::StatusOr<LinkMeasurement> Probe(const std::string& from, const std::string& address,
                                      int64_t num_bytes) {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::make_address(address), 0});
  tcp::socket near(io);
  LYNX_RETURN_IF_ERROR(Connect(from, near, acceptor.local_endpoint()));
  LinkMeasurement result;
  auto sent = std::async(std::launch::async, [&] {
    result.rtt_s = Ping(near);
    Send(near, num_bytes);
  });
  {
    tcp::socket far = acceptor.accept();  // closed before `sent` is waited for
    far.set_option(tcp::no_delay(true));
    Pong(far);
    result.bits_per_second = Receive(far, num_bytes);
  }
  sent.get();
  return result;
}

}  // namespace

absl::StatusOr<LinkMeasurement> ProbeLink(const std::string& from, const std::string& to,
                                          const std::string& address, double expected_bps) {
  const int64_t num_bytes =
      std::clamp(static_cast<int64_t>(expected_bps / 8 * kProbeSeconds), kMinBytes, kMaxBytes);
  LYNX_ASSIGN_OR_RETURN(const auto inside, InNetworkNamespace::Enter(to));
  try {
    return Probe(from, address, num_bytes);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("link from ", from, " to ", to, ": ", e.what()));
  }
}

}  // namespace lynx
