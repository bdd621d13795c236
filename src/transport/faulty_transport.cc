// SPDX-License-Identifier: Apache-2.0
#include "transport/faulty_transport.h"

#include <algorithm>
#include <utility>

#include "lynx/device_chunks.h"

namespace lynx {

FaultyTransport::FaultyTransport(std::unique_ptr<Transport> inner, const DeviceChunks* device)
    : inner_(std::move(inner)), device_(device), thread_([this] { Loop(); }) {}

FaultyTransport::~FaultyTransport() { Stop(); }

void FaultyTransport::AddRule(Rule rule) {
  std::lock_guard lock(mu_);
  rules_.push_back(std::move(rule));
}

void FaultyTransport::HoldOffers(Match match) { AddRule({Fault::kHold, std::move(match)}); }
void FaultyTransport::DelayOffers(Match match, std::chrono::milliseconds delay) {
  AddRule({Fault::kDelay, std::move(match), delay});
}
void FaultyTransport::DropOffers(Match match) { AddRule({Fault::kDropOffer, std::move(match)}); }
void FaultyTransport::CorruptPulls(Match match) { AddRule({Fault::kCorrupt, std::move(match)}); }
void FaultyTransport::FailPosts(Match match, absl::Status status) {
  AddRule({Fault::kFailPost, std::move(match), {}, std::move(status)});
}
void FaultyTransport::DropControl(Match match) { AddRule({Fault::kDropControl, std::move(match)}); }

void FaultyTransport::ReleaseOffers() {
  std::lock_guard lock(mu_);
  std::erase_if(rules_, [](const Rule& rule) { return rule.fault == Fault::kHold; });
  for (Offer& offer : std::exchange(held_, {})) {
    Schedule(Clock::now(), {[this, offer = std::move(offer)] { Deliver(offer); }, nullptr});
  }
}

void FaultyTransport::LimitPullRate(double bytes_per_second) {
  std::lock_guard lock(mu_);
  bytes_per_second_ = bytes_per_second;
}

void FaultyTransport::ClearRules() {
  std::lock_guard lock(mu_);
  rules_.clear();
}

void FaultyTransport::LosePeer(uint64_t epoch) {
  const std::optional<PeerId> peer = inner_->FindPeer(epoch);
  if (!peer.has_value()) return;
  inner_->Disconnect(*peer);
  Timed loss{[this, peer = *peer, epoch] {
               OnPeerLost(peer, epoch, absl::UnavailableError("peer lost by a test"));
             },
             nullptr};
  std::lock_guard lock(mu_);
  if (holds_losses_) return held_losses_.push_back(std::move(loss));
  Schedule(Clock::now(), std::move(loss));
}

void FaultyTransport::HoldLosses() {
  std::lock_guard lock(mu_);
  holds_losses_ = true;
}

void FaultyTransport::ReleaseLosses() {
  std::lock_guard lock(mu_);
  holds_losses_ = false;
  for (Timed& loss : std::exchange(held_losses_, {})) Schedule(Clock::now(), std::move(loss));
}

const FaultyTransport::Rule* FaultyTransport::FindRule(Fault fault,
                                                       std::span<const std::byte> bytes) const {
  for (const Rule& rule : rules_) {
    if (rule.fault == fault && rule.match(bytes)) return &rule;
  }
  return nullptr;
}

void FaultyTransport::Start(TransportHandler* handler) {
  handler_ = handler;
  inner_->Start(this);
}

void FaultyTransport::Stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  inner_->Stop();
}

absl::Status FaultyTransport::SendControl(PeerId peer, std::vector<std::byte> message) {
  {
    std::lock_guard lock(mu_);
    if (FindRule(Fault::kDropControl, message) != nullptr) return absl::OkStatus();
  }
  return inner_->SendControl(peer, std::move(message));
}

void FaultyTransport::Post(PeerId peer, Urgency urgency, std::vector<std::byte> header,
                           MemoryView payload, std::function<void(absl::Status)> done) {
  {
    std::lock_guard lock(mu_);
    if (const Rule* rule = FindRule(Fault::kFailPost, header)) {
      auto fail = [done = std::move(done), status = rule->status] { done(status); };
      return Schedule(Clock::now(), {fail, fail});
    }
  }
  inner_->Post(peer, urgency, std::move(header), payload, std::move(done));
}

void FaultyTransport::FlipABit(MutableMemoryView view) const {
  if (view.size() == 0) return;
  std::byte* at = view.bytes.data() + view.size() / 2;
  std::byte value = {};
  if (view.on_device()) device_->Copy(&value, at, 1);
  std::byte& flipped = view.on_device() ? value : *at;
  flipped ^= std::byte{0x10};
  if (view.on_device()) device_->Copy(at, &value, 1);
}

void FaultyTransport::Pull(OfferId offer, MutableMemoryView destination,
                           std::function<void(absl::Status)> done) {
  std::lock_guard lock(mu_);
  if (corrupt_.erase(offer) > 0) {
    done = [this, destination, done = std::move(done)](absl::Status status) {
      FlipABit(destination);
      done(std::move(status));
    };
  }
  if (bytes_per_second_ <= 0) return inner_->Pull(offer, destination, std::move(done));
  const std::chrono::duration<double> on_the_link(static_cast<double>(destination.size()) /
                                                  bytes_per_second_);
  link_free_ =
      std::max(link_free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(on_the_link);
  auto shared_done = std::make_shared<std::function<void(absl::Status)>>(std::move(done));
  Schedule(link_free_,
           {[this, offer, destination, shared_done] {
              inner_->Pull(offer, destination, [shared_done](absl::Status status) {
                (*shared_done)(std::move(status));
              });
            },
            [shared_done] { (*shared_done)(absl::UnavailableError("the transport stopped")); }});
}

void FaultyTransport::Drop(OfferId offer) {
  {
    std::lock_guard lock(mu_);
    corrupt_.erase(offer);
  }
  inner_->Drop(offer);
}

void FaultyTransport::OnControl(uint64_t from, std::span<const std::byte> message) {
  handler_->OnControl(from, message);
}

void FaultyTransport::OnOffer(OfferId id, uint64_t from, std::span<const std::byte> header,
                              size_t payload_bytes) {
  {
    std::lock_guard lock(mu_);
    if (FindRule(Fault::kCorrupt, header) != nullptr) corrupt_.insert(id);
    if (FindRule(Fault::kDropOffer, header) != nullptr) return inner_->Drop(id);
    Offer offer{id, from, {header.begin(), header.end()}, payload_bytes};
    if (FindRule(Fault::kHold, header) != nullptr) return held_.push_back(std::move(offer));
    if (const Rule* rule = FindRule(Fault::kDelay, header)) {
      return Schedule(Clock::now() + rule->delay,
                      {[this, offer = std::move(offer)] { Deliver(offer); }, nullptr});
    }
  }
  handler_->OnOffer(id, from, header, payload_bytes);
}

void FaultyTransport::OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) {
  {
    std::lock_guard lock(mu_);
    const bool is_back = inner_->FindPeer(epoch).has_value();
    std::erase_if(held_, [&](const Offer& offer) { return offer.from == epoch && !is_back; });
  }
  handler_->OnPeerLost(peer, epoch, why);
}

void FaultyTransport::Deliver(const Offer& offer) {
  if (!inner_->FindPeer(offer.from).has_value()) return;
  handler_->OnOffer(offer.id, offer.from, offer.header, offer.payload_bytes);
}

void FaultyTransport::Schedule(Clock::time_point when, Timed timed) {
  if (stopping_) return;
  timed_.emplace(when, std::move(timed));
  wake_.notify_all();
}

void FaultyTransport::Loop() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (timed_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const auto first = timed_.begin();
    if (first->first > Clock::now()) {
      wake_.wait_until(lock, first->first);
      continue;
    }
    const Timed timed = std::move(first->second);
    timed_.erase(first);
    lock.unlock();
    timed.run();
    lock.lock();
  }
  const auto left = std::exchange(timed_, {});
  lock.unlock();
  for (const auto& [when, timed] : left) {
    if (timed.skip) timed.skip();
  }
}

}  // namespace lynx
