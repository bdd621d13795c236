// SPDX-License-Identifier: Apache-2.0
// A transport with faults, for tests: decorates another and misbehaves by rule.
//
// A rule looks at the header of a bulk message or at a control message; the first rule of a kind
// that matches applies. Put it on the side whose view should be wrong: offers, pulls and the rate
// are the receiver's, posts and control messages the sender's. All methods may be called from any
// thread. Delayed and released offers arrive on the decorator's own thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "lynx/transport.h"

namespace lynx {

class FaultyTransport final : public Transport, private TransportHandler {
 public:
  using Match = std::function<bool(std::span<const std::byte> header_or_message)>;

  // device: as the inner transport's.
  explicit FaultyTransport(std::unique_ptr<Transport> inner, const DeviceChunks* device = nullptr);
  ~FaultyTransport() override;

  void HoldOffers(Match match);  // they stay unseen until ReleaseOffers
  void ReleaseOffers();          // ends the hold rules and delivers what they held, in order
  void DelayOffers(Match match, std::chrono::milliseconds delay);
  void DropOffers(Match match);    // the sender believes they were taken
  void CorruptPulls(Match match);  // one bit of the payload arrives wrong
  void FailPosts(Match match, absl::Status status);
  void DropControl(Match match);                // of outgoing messages
  void LimitPullRate(double bytes_per_second);  // one link for all pulls; 0 = no limit
  void LosePeer(uint64_t epoch);                // both sides lose each other
  void HoldLosses();  // what LosePeer does is not told here until ReleaseLosses
  void ReleaseLosses();
  void ClearRules();  // held and delayed offers stay so

  uint64_t epoch() const override { return inner_->epoch(); }
  std::string address() const override { return inner_->address(); }
  void Start(TransportHandler* handler) override;
  void Stop() override;
  absl::StatusOr<PeerId> Connect(std::string_view address) override {
    return inner_->Connect(address);
  }
  std::optional<PeerId> FindPeer(uint64_t epoch) const override { return inner_->FindPeer(epoch); }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::Status SendControl(PeerId peer, std::vector<std::byte> message) override;
  void Post(PeerId peer, Urgency urgency, std::vector<std::byte> header, MemoryView payload,
            std::function<void(absl::Status)> done) override;
  void Pull(OfferId offer, MutableMemoryView destination,
            std::function<void(absl::Status)> done) override;
  bool takes_device_memory() const override { return inner_->takes_device_memory(); }
  void Drop(OfferId offer) override;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Fault : uint8_t { kHold, kDelay, kDropOffer, kCorrupt, kFailPost, kDropControl };
  struct Rule {
    Fault fault;
    Match match;
    std::chrono::milliseconds delay{0};
    absl::Status status;
  };
  struct Offer {
    OfferId id = 0;
    uint64_t from = 0;
    std::vector<std::byte> header;
    size_t payload_bytes = 0;
  };
  // Something to do later; `skip` instead when the transport stops first.
  struct Timed {
    std::function<void()> run;
    std::function<void()> skip;
  };

  void OnControl(uint64_t from, std::span<const std::byte> message) override;
  void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override;
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override;

  void AddRule(Rule rule);
  const Rule* FindRule(Fault fault, std::span<const std::byte> bytes) const;  // mutex held
  void Schedule(Clock::time_point when, Timed timed);                         // mutex held
  void FlipABit(MutableMemoryView bytes) const;
  void Deliver(const Offer& offer);
  void Loop();

  const std::unique_ptr<Transport> inner_;
  const DeviceChunks* const device_;
  TransportHandler* handler_ = nullptr;

  std::mutex mu_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::vector<Rule> rules_;
  std::vector<Offer> held_;
  bool holds_losses_ = false;
  std::vector<Timed> held_losses_;
  std::set<OfferId> corrupt_;
  double bytes_per_second_ = 0;
  Clock::time_point link_free_{};
  std::multimap<Clock::time_point, Timed> timed_;
  std::thread thread_;
};

}  // namespace lynx
