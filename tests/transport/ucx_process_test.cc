// SPDX-License-Identifier: Apache-2.0
// UCX between processes, where one dies or is stopped.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <deque>
#include <set>
#include <sstream>
#include <thread>

#include "tests/transport/make_ucx.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/recording_handler.h"
#include "transport/tcp_sockets.h"
#include "transport/ucx_address.h"

namespace lynx {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

UcxOptions QuickOptions() {
  return {.heartbeat_interval_ms = 50, .suspect_after_ms = 1000, .tcp_user_timeout_ms = 1000};
}

// ---- the other process --------------------------------------------------------------------------

class PeerHandler : public TransportHandler {
 public:
  void OnControl(uint64_t from, std::span<const std::byte> message) override {
    std::istringstream command(Text(message));
    std::string word;
    int count = 0;
    size_t bytes = 0;
    command >> word >> count >> bytes;
    const std::optional<PeerId> peer = transport->FindPeer(from);
    if (word != "post" || !peer.has_value()) return;
    auto payload = std::make_shared<std::vector<std::byte>>(bytes, std::byte{5});
    for (int i = 0; i < count; ++i) {
      transport->Post(*peer, Urgency::kUrgent, Bytes(std::to_string(i)), *payload,
                      [payload](const absl::Status&) {});
    }
    (void)transport->SendControl(*peer, Bytes("posted"));
  }
  void OnOffer(OfferId offer, uint64_t, std::span<const std::byte> header, size_t) override {
    if (Text(header) == "drop") transport->Drop(offer);
  }
  void OnPeerLost(PeerId, uint64_t, const absl::Status&) override {}

  Transport* transport = nullptr;
};

// Not a test: the body of PeerProcess. Ends when its parent kills it.
TEST(UcxPeer, DISABLED_ServePeer) {
  std::unique_ptr<Transport> transport = MakeUcx(QuickOptions());
  PeerHandler handler;
  handler.transport = transport.get();
  transport->Start(&handler);
  PeerProcess::TellAddress(transport->address());
  while (true) pause();
}

// ---- this process -------------------------------------------------------------------------------

class UcxProcessTest : public testing::Test {
 protected:
  void SetUp() override { transport_->Start(&handler_); }
  PeerId Connect(const PeerProcess& process) {
    absl::StatusOr<PeerId> peer = transport_->Connect(process.address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    return peer.value_or(0);
  }
  // Has the peer post and waits until all is offered; then both lanes are wired up both ways.
  void AskForPosts(PeerId peer, int count, size_t bytes) {
    const size_t before = handler_.offers.size();
    const size_t answers = handler_.control.size();
    std::ostringstream command;
    command << "post " << count << " " << bytes;
    ASSERT_TRUE(transport_->SendControl(peer, Bytes(command.str())).ok());
    ASSERT_TRUE(handler_.signal.WaitFor([&] {
      return handler_.offers.size() == before + count && handler_.control.size() == answers + 1;
    }));
  }
  void PullOne(size_t index) {
    const RecordingHandler::Offer offer = handler_.offers[index];
    std::vector<std::byte> received(offer.payload_bytes);
    Outcome pulled;
    transport_->Pull(offer.id, received, pulled.Callback());
    ASSERT_TRUE(pulled.Wait());
    ASSERT_TRUE(pulled.status().ok())
        << pulled.status()
        << (handler_.losses.empty() ? absl::OkStatus() : handler_.losses.back().why);
    EXPECT_EQ(received, std::vector<std::byte>(offer.payload_bytes, std::byte{5}));
  }
  bool WaitForLoss() {
    return handler_.signal.WaitFor([&] { return !handler_.losses.empty(); });
  }

  RecordingHandler handler_;
  std::unique_ptr<Transport> transport_ = MakeUcx(QuickOptions());
};

TEST_F(UcxProcessTest, BytesComeFromAnotherProcess) {
  PeerProcess process;
  const PeerId peer = Connect(process);
  AskForPosts(peer, 10, 300000);
  for (int i = 9; i >= 0; --i) PullOne(i);
}

TEST_F(UcxProcessTest, KilledSenderIsNoticedAndPullsEnd) {
  PeerProcess process;
  const PeerId peer = Connect(process);
  AskForPosts(peer, 8, 4 << 20);
  PullOne(0);
  std::deque<Outcome> pulled(7);
  std::deque<std::vector<std::byte>> received(7, std::vector<std::byte>(4 << 20));
  for (int i = 0; i < 4; ++i) {
    transport_->Pull(handler_.offers[i + 1].id, received[i], pulled[i].Callback());
  }
  const auto killed = steady_clock::now();
  process.Kill();
  ASSERT_TRUE(WaitForLoss());
  EXPECT_LT(handler_.losses[0].when - killed, milliseconds(3000));
  for (int i = 4; i < 7; ++i) {
    transport_->Pull(handler_.offers[i + 1].id, received[i], pulled[i].Callback());
  }
  for (Outcome& outcome : pulled) ASSERT_TRUE(outcome.Wait());
  EXPECT_FALSE(pulled[6].status().ok());
  EXPECT_FALSE(transport_->SendControl(peer, Bytes("x")).ok());
}

TEST_F(UcxProcessTest, KilledReceiverEndsPosts) {
  PeerProcess process;
  const PeerId peer = Connect(process);
  const std::vector<std::byte> payload(1 << 20);
  std::deque<Outcome> posted(8);
  for (Outcome& outcome : posted) {
    transport_->Post(peer, Urgency::kUrgent, Bytes("x"), payload, outcome.Callback());
  }
  AskForPosts(peer, 1, 10);  // the connection is up
  const auto killed = steady_clock::now();
  process.Kill();
  for (Outcome& outcome : posted) {
    ASSERT_TRUE(outcome.Wait());
    EXPECT_FALSE(outcome.status().ok());
  }
  ASSERT_TRUE(WaitForLoss());
  EXPECT_LT(handler_.losses[0].when - killed, milliseconds(3000));
}

TEST_F(UcxProcessTest, StoppedPeerIsNoticedAndCanComeBack) {
  PeerProcess process;
  const PeerId peer = Connect(process);
  AskForPosts(peer, 3, 4 << 20);
  const std::vector<std::byte> payload(1 << 20);
  Outcome posted, pulled, late;
  process.Stop();
  const auto stopped = steady_clock::now();
  transport_->Post(peer, Urgency::kUrgent, Bytes("x"), payload, posted.Callback());
  std::vector<std::byte> received(4 << 20);
  transport_->Pull(handler_.offers[0].id, received, pulled.Callback());
  ASSERT_TRUE(WaitForLoss());
  const auto noticed = handler_.losses[0].when - stopped;
  EXPECT_GT(noticed, milliseconds(500));
  EXPECT_LT(noticed, milliseconds(3000));
  ASSERT_TRUE(posted.Wait());
  EXPECT_FALSE(posted.status().ok());
  std::vector<std::byte> rest(4 << 20);
  transport_->Pull(handler_.offers[1].id, rest, late.Callback());
  ASSERT_TRUE(late.Wait());
  EXPECT_FALSE(late.status().ok());

  process.Continue();
  ASSERT_TRUE(pulled.Wait());
  const PeerId again = Connect(process);
  EXPECT_NE(again, peer);
  AskForPosts(again, 1, 100000);
  PullOne(handler_.offers.size() - 1);
}

// This process's ends of connections to the ports.
std::vector<int> SocketsTo(const std::set<uint16_t>& ports) {
  std::vector<int> sockets;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        address.sin_family == AF_INET && ports.contains(ntohs(address.sin_port))) {
      sockets.push_back(fd);
    }
  }
  return sockets;
}

class UcxBulkLinkTest : public UcxProcessTest, public testing::WithParamInterface<Urgency> {};
INSTANTIATE_TEST_SUITE_P(, UcxBulkLinkTest, testing::Values(Urgency::kUrgent, Urgency::kPatient),
                         [](const auto& info) {
                           return info.param == Urgency::kUrgent ? "Urgent" : "Patient";
                         });

// Each urgency has a link of its own; the urgent one is dialled first. With either of them the
// whole peer is lost, once, and what is under way on the other ends too.
TEST_P(UcxBulkLinkTest, ThePeerIsLostWithOneLink) {
  PeerProcess process;
  const PeerId peer = Connect(process);
  AskForPosts(peer, 1, 100000);
  PullOne(0);
  const std::vector<std::byte> payload(1 << 20);
  for (const Urgency urgency : {Urgency::kUrgent, Urgency::kPatient}) {
    Outcome dropped;  // then the link is wired up
    transport_->Post(peer, urgency, Bytes("drop"), payload, dropped.Callback());
    ASSERT_TRUE(dropped.Wait());
  }
  Outcome urgent, patient;
  transport_->Post(peer, Urgency::kUrgent, Bytes("x"), payload, urgent.Callback());
  transport_->Post(peer, Urgency::kPatient, Bytes("x"), payload, patient.Callback());

  const std::vector<int> sockets = SocketsTo(UcxAddress::Parse(process.address())->bulk_ports);
  ASSERT_GE(sockets.size(), 2u);
  const bool first = GetParam() == Urgency::kUrgent;
  ASSERT_EQ(shutdown(first ? sockets.front() : sockets.back(), SHUT_RDWR), 0);
  ASSERT_TRUE(WaitForLoss());
  for (Outcome* outcome : {&urgent, &patient}) {
    ASSERT_TRUE(outcome->Wait());
    EXPECT_FALSE(outcome->status().ok());
  }

  const PeerId again = Connect(process);
  EXPECT_NE(again, peer);
  AskForPosts(again, 1, 100000);
  PullOne(1);
  EXPECT_EQ(handler_.losses.size(), 1u);
  EXPECT_EQ(urgent.num_calls() + patient.num_calls(), 2);
}

TEST_F(UcxProcessTest, RestartedPeerIsAnother) {
  auto process = std::make_unique<PeerProcess>();
  const PeerId first = Connect(*process);
  AskForPosts(first, 1, 1000);
  process->Kill();
  ASSERT_TRUE(WaitForLoss());
  process = std::make_unique<PeerProcess>();
  const PeerId second = Connect(*process);
  EXPECT_NE(first, second);
  AskForPosts(second, 1, 1000);
  EXPECT_NE(handler_.offers[0].from, handler_.offers[1].from);
  PullOne(1);
}

TEST_F(UcxProcessTest, OneReceiverManySenders) {
  PeerProcess one, two;
  AskForPosts(Connect(one), 5, 100000);
  AskForPosts(Connect(two), 5, 100000);
  one.Kill();
  ASSERT_TRUE(WaitForLoss());
  for (int i = 5; i < 10; ++i) PullOne(i);
}

// IP_TOS and TCP_RTO_MIN_US on control sockets, TCP_USER_TIMEOUT on all.
TEST_F(UcxProcessTest, SocketsAreMarked) {
  PeerProcess process;
  AskForPosts(Connect(process), 1, 1000);
  PullOne(0);
  int num_control = 0, num_timeouts = 0;
  for (int tries = 0; tries < 40 && num_control == 0; ++tries) {
    std::this_thread::sleep_for(milliseconds(25));
    num_control = num_timeouts = 0;
    for (int fd = 3; fd < 256; ++fd) {
      int tos = 0, timeout = 0;
      socklen_t size = sizeof(int);
      if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size) != 0) continue;
      if (getsockopt(fd, IPPROTO_IP, IP_TOS, &tos, &size) != 0) continue;
      num_control += tos == 0xb8;
      int min_retransmit_us = 0;  // which not every kernel knows
      if (tos == 0xb8 &&
          getsockopt(fd, IPPROTO_TCP, kTcpRtoMinUs, &min_retransmit_us, &size) == 0) {
        EXPECT_EQ(min_retransmit_us, 40'000);
      }
      num_timeouts += timeout == QuickOptions().tcp_user_timeout_ms;
    }
  }
  EXPECT_GT(num_control, 0);
  EXPECT_GT(num_timeouts, num_control);  // bulk sockets too
}

}  // namespace
}  // namespace lynx
