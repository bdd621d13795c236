// SPDX-License-Identifier: Apache-2.0
// The contract of Transport, for every implementation.
#include "lynx/transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/transport/make_ucx.h"
#include "tests/transport/recording_handler.h"
#include "transport/faulty_transport.h"

namespace lynx {
namespace {

using std::chrono::milliseconds;

enum class Kind { kLoopback, kFaulty, kUcxTcp, kUcxSharedMemory };

class TransportTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Transport> Make() {
    switch (GetParam()) {
      case Kind::kLoopback:
        return MakeLoopbackTransport(hub_);
      case Kind::kFaulty:
        return std::make_unique<FaultyTransport>(MakeLoopbackTransport(hub_));
      case Kind::kUcxTcp:
        return MakeUcx({.tls = "tcp,self"});
      case Kind::kUcxSharedMemory:
        return MakeUcx({.tls = "posix,sysv,self"});
    }
    return nullptr;
  }
  void SetUp() override {
    a_ = Make();
    b_ = Make();
    a_->Start(&at_a_);
    b_->Start(&at_b_);
  }
  void TearDown() override {
    // The one who connected first: a UCX transport that stops while it is being connected to can
    // abort the process (ucx_lane.h).
    a_.reset();
    b_.reset();
  }
  PeerId Connect(Transport& from, Transport& to) {
    absl::StatusOr<PeerId> peer = from.Connect(to.address());
    EXPECT_TRUE(peer.ok()) << peer.status();
    return peer.value_or(0);
  }
  RecordingHandler::Offer WaitForOffer(RecordingHandler& at, size_t index) {
    EXPECT_TRUE(at.signal.WaitFor([&] { return at.offers.size() > index; }));
    RecordingHandler::Offer offer{};
    at.signal.Update([&] {
      if (at.offers.size() > index) offer = at.offers[index];
    });
    return offer;
  }
  // Posts from a to b and pulls b's offer number `index`.
  void Exchange(PeerId b, size_t index) {
    Outcome posted, pulled;
    const std::vector<std::byte> payload(100000, std::byte{9});
    a_->Post(b, Urgency::kUrgent, Bytes("payload"), payload, posted.Callback());
    std::vector<std::byte> received(payload.size());
    b_->Pull(WaitForOffer(at_b_, index).id, received, pulled.Callback());
    ASSERT_TRUE(pulled.Wait());
    ASSERT_TRUE(posted.Wait());
    EXPECT_EQ(received, payload);
  }

  std::shared_ptr<LoopbackHub> hub_ = MakeLoopbackHub();
  RecordingHandler at_a_, at_b_;
  std::unique_ptr<Transport> a_, b_;
};

TEST_P(TransportTest, ControlArrivesInOrderBothWays) {
  const PeerId b = Connect(*a_, *b_);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(a_->SendControl(b, Bytes(std::to_string(i))).ok());
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return at_b_.control.size() == 100; }));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(at_b_.control[i], std::make_pair(a_->epoch(), std::to_string(i)));
  }
  const std::optional<PeerId> a = b_->FindPeer(a_->epoch());
  ASSERT_TRUE(a.has_value());
  ASSERT_TRUE(b_->SendControl(*a, Bytes("answer")).ok());
  ASSERT_TRUE(at_a_.signal.WaitFor([&] { return at_a_.control.size() == 1; }));
  EXPECT_EQ(at_a_.control[0], std::make_pair(b_->epoch(), std::string("answer")));
}

TEST_P(TransportTest, LargestControlMessageArrives) {
  const PeerId b = Connect(*a_, *b_);
  const std::string text(kMaxControlBytes, 'x');
  ASSERT_TRUE(a_->SendControl(b, Bytes(text)).ok());
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return at_b_.control.size() == 1; }));
  EXPECT_EQ(at_b_.control[0].second, text);
  EXPECT_EQ(a_->SendControl(b, Bytes(text + "x")).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportTest, ConnectIsIdempotent) {
  const PeerId b = Connect(*a_, *b_);
  EXPECT_EQ(Connect(*a_, *b_), b);
  EXPECT_EQ(a_->FindPeer(b_->epoch()), b);
  EXPECT_EQ(a_->FindPeer(12345), std::nullopt);
}

TEST_P(TransportTest, ConnectRefusesGarbage) {
  EXPECT_FALSE(a_->Connect("").ok());
  EXPECT_FALSE(a_->Connect("nonsense").ok());
  std::string address = b_->address();
  address.resize(address.size() / 2);
  EXPECT_FALSE(a_->Connect(address).ok());
}

TEST_P(TransportTest, PayloadMovesWhenTheReceiverPulls) {
  const PeerId b = Connect(*a_, *b_);
  std::mt19937 random(1);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{8192}, size_t{3000000}}) {
    std::vector<std::byte> payload(size);
    for (std::byte& byte : payload) byte = static_cast<std::byte>(random());
    const size_t index = at_b_.num_offers();
    Outcome posted, pulled;
    a_->Post(b, Urgency::kUrgent, Bytes("header"), payload, posted.Callback());
    const RecordingHandler::Offer offer = WaitForOffer(at_b_, index);
    EXPECT_EQ(offer.from, a_->epoch());
    EXPECT_EQ(offer.header, "header");
    ASSERT_EQ(offer.payload_bytes, size);
    if (size >= 100) {
      EXPECT_FALSE(posted.done_within(milliseconds(5))) << size;
    }
    std::vector<std::byte> received(size);
    b_->Pull(offer.id, received, pulled.Callback());
    ASSERT_TRUE(pulled.Wait());
    EXPECT_TRUE(pulled.status().ok()) << pulled.status();
    ASSERT_TRUE(posted.Wait());
    EXPECT_TRUE(posted.status().ok()) << posted.status();
    EXPECT_EQ(received, payload) << size;
  }
}

TEST_P(TransportTest, TheReceiverChoosesTheOrder) {
  const PeerId b = Connect(*a_, *b_);
  constexpr int kNumMessages = 20;
  std::vector<std::vector<std::byte>> payloads;
  std::deque<Outcome> posted(kNumMessages), pulled(kNumMessages);
  for (int i = 0; i < kNumMessages; ++i) payloads.emplace_back(50000, static_cast<std::byte>(i));
  for (int i = 0; i < kNumMessages; ++i) {
    a_->Post(b, Urgency::kPatient, Bytes(std::to_string(i)), payloads[i], posted[i].Callback());
  }
  ASSERT_EQ(WaitForOffer(at_b_, kNumMessages - 1).header, std::to_string(kNumMessages - 1));
  std::vector<std::byte> received(50000);
  for (int i = kNumMessages - 1; i >= 0; --i) {
    EXPECT_EQ(at_b_.offers[i].header, std::to_string(i));
    b_->Pull(at_b_.offers[i].id, received, pulled[i].Callback());
    ASSERT_TRUE(pulled[i].Wait());
    EXPECT_EQ(received, payloads[i]);
    ASSERT_TRUE(posted[i].Wait());
    if (i > 0) {
      EXPECT_EQ(posted[i - 1].num_calls(), 0);
    }
  }
}

TEST_P(TransportTest, UrgentMessagesDoNotWaitForPatientPayloads) {
  const PeerId b = Connect(*a_, *b_);
  constexpr int kNumPatient = 64;
  const std::vector<std::byte> large(8 << 20, std::byte{1}), small(50000, std::byte{2});
  std::deque<Outcome> posted(kNumPatient + 1), pulled(kNumPatient + 1);
  std::vector<std::byte> received_large(large.size()), received_small(small.size());
  for (int i = 0; i < kNumPatient; ++i) {
    a_->Post(b, Urgency::kPatient, Bytes("patient"), large, posted[i].Callback());
  }
  WaitForOffer(at_b_, kNumPatient - 1);
  for (int i = 0; i < kNumPatient; ++i) {
    b_->Pull(at_b_.offers[i].id, received_large, pulled[i].Callback());
  }
  a_->Post(b, Urgency::kUrgent, Bytes("urgent"), small, posted.back().Callback());
  const RecordingHandler::Offer offer = WaitForOffer(at_b_, kNumPatient);
  EXPECT_EQ(offer.header, "urgent");
  if (GetParam() == Kind::kUcxTcp) {  // elsewhere payloads may have arrived by now
    EXPECT_EQ(pulled[kNumPatient - 1].num_calls(), 0) << "the offer came behind the payloads";
  }
  b_->Pull(offer.id, received_small, pulled.back().Callback());
  for (auto* outcomes : {&pulled, &posted}) {
    for (Outcome& outcome : *outcomes) {
      ASSERT_TRUE(outcome.Wait());
      EXPECT_TRUE(outcome.status().ok()) << outcome.status();
    }
  }
  EXPECT_EQ(received_large, large);
  EXPECT_EQ(received_small, small);
}

TEST_P(TransportTest, DropFreesTheSender) {
  const PeerId b = Connect(*a_, *b_);
  const std::vector<std::byte> payload(100000, std::byte{7});
  Outcome posted, pulled;
  a_->Post(b, Urgency::kPatient, Bytes("unwanted"), payload, posted.Callback());
  const RecordingHandler::Offer offer = WaitForOffer(at_b_, 0);
  b_->Drop(offer.id);
  ASSERT_TRUE(posted.Wait());
  std::vector<std::byte> received(payload.size());
  b_->Pull(offer.id, received, pulled.Callback());
  ASSERT_TRUE(pulled.Wait());
  EXPECT_FALSE(pulled.status().ok());
  b_->Drop(offer.id);
  b_->Drop(987654321);
}

TEST_P(TransportTest, StopTellsThePeerAndEndsItsPosts) {
  const PeerId b = Connect(*a_, *b_);
  const std::vector<std::byte> payload(200000, std::byte{7});
  Outcome posted, later;
  a_->Post(b, Urgency::kUrgent, Bytes("never pulled"), payload, posted.Callback());
  WaitForOffer(at_b_, 0);
  ASSERT_TRUE(a_->SendControl(b, Bytes("connected")).ok());
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return at_b_.control.size() == 1; }));
  b_->Stop();
  ASSERT_TRUE(posted.Wait());  // with whatever: the offer counts as dropped
  ASSERT_TRUE(at_a_.signal.WaitFor([&] { return !at_a_.losses.empty(); }));
  EXPECT_EQ(at_a_.losses[0].peer, b);
  EXPECT_EQ(at_a_.losses[0].epoch, b_->epoch());
  EXPECT_FALSE(a_->SendControl(b, Bytes("too late")).ok());
  a_->Post(b, Urgency::kUrgent, Bytes("too late"), payload, later.Callback());
  ASSERT_TRUE(later.Wait());
  EXPECT_FALSE(later.status().ok());
  EXPECT_EQ(a_->FindPeer(b_->epoch()), std::nullopt);
}

TEST_P(TransportTest, StopEndsOwnPostsAndVoidsThePeersOffers) {
  const PeerId b = Connect(*a_, *b_);
  const std::vector<std::byte> payload(200000, std::byte{7});
  Outcome posted, pulled;
  a_->Post(b, Urgency::kUrgent, Bytes("never pulled"), payload, posted.Callback());
  const RecordingHandler::Offer offer = WaitForOffer(at_b_, 0);
  a_->Stop();
  EXPECT_EQ(posted.num_calls(), 1);  // with whatever: the peer may have dropped it
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return !at_b_.losses.empty(); }));
  std::vector<std::byte> received(payload.size());
  b_->Pull(offer.id, received, pulled.Callback());
  ASSERT_TRUE(pulled.Wait());
  EXPECT_FALSE(pulled.status().ok());
}

TEST_P(TransportTest, DisconnectedPeersCanConnectAgain) {
  const PeerId first = Connect(*a_, *b_);
  Exchange(first, 0);
  ASSERT_TRUE(a_->SendControl(first, Bytes("one")).ok());
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return at_b_.control.size() == 1; }));
  ASSERT_TRUE(b_->SendControl(*b_->FindPeer(a_->epoch()), Bytes("one")).ok());
  ASSERT_TRUE(at_a_.signal.WaitFor([&] { return at_a_.control.size() == 1; }));
  a_->Disconnect(first);
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return !at_b_.losses.empty(); }));
  const PeerId second = Connect(*a_, *b_);
  EXPECT_NE(first, second);
  ASSERT_TRUE(a_->SendControl(second, Bytes("two")).ok());
  ASSERT_TRUE(at_b_.signal.WaitFor([&] { return at_b_.control.size() == 2; }));
  EXPECT_EQ(at_b_.control[1].second, "two");
  Exchange(second, 1);
  EXPECT_TRUE(at_a_.losses.empty());
}

// Posts from several threads while the receiver pulls, drops and the sender finally stops: every
// completion runs exactly once.
TEST_P(TransportTest, EveryCompletionRunsOnce) {
  const PeerId b = Connect(*a_, *b_);
  constexpr int kPerThread = 100;
  std::vector<std::byte> payload(20000, std::byte{3});
  std::deque<Outcome> posted(2 * kPerThread);
  std::deque<Outcome> pulled(2 * kPerThread);
  std::deque<std::vector<std::byte>> received(2 * kPerThread);
  std::atomic<int> num_pulls = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = t * kPerThread; i < (t + 1) * kPerThread; ++i) {
        const Urgency urgency = i % 2 == 0 ? Urgency::kUrgent : Urgency::kPatient;
        a_->Post(b, urgency, Bytes(std::to_string(i)), payload, posted[i].Callback());
      }
    });
  }
  std::thread receiver([&] {
    for (int i = 0; i < kPerThread; ++i) {
      const RecordingHandler::Offer offer = WaitForOffer(at_b_, i);
      if (i % 3 == 0) {
        b_->Drop(offer.id);
        continue;
      }
      received[i].resize(payload.size());
      b_->Pull(offer.id, received[i], pulled[num_pulls++].Callback());
    }
  });
  for (std::thread& thread : threads) thread.join();
  receiver.join();
  a_->Stop();
  b_->Stop();
  for (Outcome& outcome : posted) EXPECT_EQ(outcome.num_calls(), 1);
  for (int i = 0; i < num_pulls; ++i) EXPECT_EQ(pulled[i].num_calls(), 1);
}

std::string KindName(const testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::kLoopback:
      return "Loopback";
    case Kind::kFaulty:
      return "Faulty";
    case Kind::kUcxTcp:
      return "UcxTcp";
    case Kind::kUcxSharedMemory:
      return "UcxSharedMemory";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         testing::Values(Kind::kLoopback, Kind::kFaulty, Kind::kUcxTcp,
                                         Kind::kUcxSharedMemory),
                         KindName);

// Where UCX has no CUDA, or this build does not ask it for any.
TEST(UcxDeviceMemory, WithoutCudaEverythingPassesThroughHostMemory) {
  std::atomic<int> num_calls = 0;
  const UcxOptions options{.use_device = [&] { ++num_calls; }};
  RecordingHandler at_a, at_b;
  std::unique_ptr<Transport> a = MakeUcx(options), b = MakeUcx(options);
  if (a->takes_device_memory()) GTEST_SKIP() << "this UCX has CUDA";
  a->Start(&at_a);
  b->Start(&at_b);
  const absl::StatusOr<PeerId> peer = a->Connect(b->address());
  ASSERT_TRUE(peer.ok()) << peer.status();
  const std::vector<std::byte> payload(100000, std::byte{9});
  std::vector<std::byte> received(payload.size());
  Outcome posted, pulled;
  a->Post(*peer, Urgency::kUrgent, Bytes("payload"), payload, posted.Callback());
  ASSERT_TRUE(at_b.signal.WaitFor([&] { return !at_b.offers.empty(); }));
  b->Pull(at_b.offers[0].id, received, pulled.Callback());
  ASSERT_TRUE(pulled.Wait());
  ASSERT_TRUE(posted.Wait());
  EXPECT_EQ(received, payload);
  a.reset();
  b.reset();
}

}  // namespace
}  // namespace lynx
