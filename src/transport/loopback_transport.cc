// SPDX-License-Identifier: Apache-2.0
// Transports of one process that reach each other through a hub.
//
// Each transport is a Node with a control and a bulk thread. A posted bulk message is a Parcel that
// the receiving node holds as an offer; the receiver copies it inside the parcel's lock, so that a
// sender that stops or loses the peer never frees a payload under a running copy.
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "lynx/device_chunks.h"
#include "lynx/transport.h"
#include "transport/random_epoch.h"
#include "transport/task_thread.h"

namespace lynx {
namespace {

class Node;

constexpr std::string_view kAddressPrefix = "loopback:";

// One posted bulk message. Shared by the sending and the receiving node: whoever ends it first
// wins.
class Parcel {
 public:
  Parcel(std::shared_ptr<Node> sender, uint64_t to, std::vector<std::byte> header,
         MemoryView payload, std::function<void(absl::Status)> done)
      : sender_(std::move(sender)),
        to_(to),
        header_(std::move(header)),
        payload_(payload),
        done_(std::move(done)) {}

  uint64_t to() const { return to_; }
  const std::vector<std::byte>& header() const { return header_; }
  size_t payload_bytes() const { return payload_.size(); }

  // Copies the payload; false when the sender has taken it back.
  bool CopyTo(MutableMemoryView destination, const DeviceChunks* device) {
    std::lock_guard lock(mu_);
    if (!done_) return false;
    std::byte* to = destination.bytes.data();
    const std::byte* from = payload_.bytes.data();
    if (destination.on_device() || payload_.on_device()) {
      device->Copy(to, from, payload_.size());
    } else if (payload_.size() > 0) {
      std::memcpy(to, from, payload_.size());
    }
    return true;
  }
  // Runs the sender's completion on its bulk thread, once.
  void Finish(const std::shared_ptr<Parcel>& self, absl::Status status);

 private:
  std::mutex mu_;
  const std::shared_ptr<Node> sender_;
  const uint64_t to_;
  const std::vector<std::byte> header_;
  const MemoryView payload_;
  std::function<void(absl::Status)> done_;
};

}  // namespace

class LoopbackHub {
 public:
  void Add(uint64_t epoch, std::weak_ptr<Node> node) {
    std::lock_guard lock(mu_);
    nodes_[epoch] = std::move(node);
  }
  void Remove(uint64_t epoch) {
    std::lock_guard lock(mu_);
    nodes_.erase(epoch);
  }
  std::shared_ptr<Node> Find(uint64_t epoch) {
    std::lock_guard lock(mu_);
    auto it = nodes_.find(epoch);
    return it == nodes_.end() ? nullptr : it->second.lock();
  }

 private:
  std::mutex mu_;
  std::map<uint64_t, std::weak_ptr<Node>> nodes_;
};

namespace {

// Shared by its LoopbackTransport and by the tasks and parcels that are under way to or from it.
class Node : public std::enable_shared_from_this<Node> {
 public:
  Node(std::shared_ptr<LoopbackHub> hub, const DeviceChunks* device)
      : epoch_(RandomEpoch()), hub_(std::move(hub)), device_(device) {}

  uint64_t epoch() const { return epoch_; }
  void Start(TransportHandler* handler) {
    handler_ = handler;
    hub_->Add(epoch_, weak_from_this());
  }
  void Stop();

  absl::StatusOr<PeerId> Connect(std::string_view address);
  std::optional<PeerId> FindPeer(uint64_t epoch) const;
  void Disconnect(PeerId peer);
  absl::Status SendControl(PeerId peer, std::vector<std::byte> message);
  void Post(PeerId peer, std::vector<std::byte> header, MemoryView payload,
            std::function<void(absl::Status)> done);
  void Pull(OfferId offer, MutableMemoryView destination, std::function<void(absl::Status)> done);
  void Drop(OfferId offer);

  bool RunOnBulk(std::function<void()> task) { return bulk_.Post(std::move(task)); }
  void Forget(const std::shared_ptr<Parcel>& parcel) {
    std::lock_guard lock(mu_);
    posted_.erase(parcel);
  }

 private:
  struct Offer {
    uint64_t from = 0;
    std::shared_ptr<Parcel> parcel;
  };

  std::optional<PeerId> AddPeer(const std::shared_ptr<Node>& node);  // nullopt: stopped
  std::shared_ptr<Node> NodeOf(PeerId peer) const;
  void Deliver(uint64_t from, std::vector<std::byte> message);
  void Receive(uint64_t from, std::shared_ptr<Parcel> parcel);
  std::shared_ptr<Parcel> Take(OfferId offer);
  enum class Tell { kHandler, kNobody };
  void Lose(uint64_t epoch, const absl::Status& why, Tell tell);

  const uint64_t epoch_;
  const std::shared_ptr<LoopbackHub> hub_;
  const DeviceChunks* const device_;
  std::atomic<TransportHandler*> handler_ = nullptr;

  mutable std::mutex mu_;
  bool stopped_ = false;
  PeerId next_peer_ = 1;
  OfferId next_offer_ = 1;
  std::map<PeerId, std::shared_ptr<Node>> peers_;
  std::map<uint64_t, PeerId> peer_of_epoch_;
  std::map<OfferId, Offer> offers_;
  std::set<std::shared_ptr<Parcel>> posted_;

  TaskThread control_;
  TaskThread bulk_;
};

void Parcel::Finish(const std::shared_ptr<Parcel>& self, absl::Status status) {
  {
    // Handed to the sender's thread before anybody can find the parcel finished: a sender that
    // stops finishes its parcels first, and then waits for what it was handed.
    std::lock_guard lock(mu_);
    if (!done_) return;
    sender_->RunOnBulk(
        [done = std::exchange(done_, nullptr), status = std::move(status)] { done(status); });
  }
  sender_->Forget(self);
}

std::optional<PeerId> Node::AddPeer(const std::shared_ptr<Node>& node) {
  std::lock_guard lock(mu_);
  if (stopped_) return std::nullopt;
  auto [it, added] = peer_of_epoch_.try_emplace(node->epoch(), next_peer_);
  if (added) peers_[next_peer_++] = node;
  return it->second;
}

absl::StatusOr<PeerId> Node::Connect(std::string_view address) {
  uint64_t epoch = 0;
  if (address.size() != kAddressPrefix.size() + sizeof(epoch) ||
      !address.starts_with(kAddressPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a loopback address has ", kAddressPrefix.size() + sizeof(epoch),
        " bytes and starts with \"", kAddressPrefix.data(), "\"; got ", address.size(), " bytes"));
  }
  std::memcpy(&epoch, address.data() + kAddressPrefix.size(), sizeof(epoch));
  std::shared_ptr<Node> node = hub_->Find(epoch);
  if (node == nullptr) {
    return absl::UnavailableError(absl::StrCat("no loopback transport with epoch ", epoch));
  }
  std::optional<PeerId> peer = AddPeer(node);
  if (!peer.has_value()) return absl::UnavailableError("this transport is stopped");
  if (!node->AddPeer(shared_from_this()).has_value()) {
    Lose(epoch, absl::OkStatus(), Tell::kNobody);
    return absl::UnavailableError(absl::StrCat("loopback transport ", epoch, " is stopped"));
  }
  return *peer;
}

std::optional<PeerId> Node::FindPeer(uint64_t epoch) const {
  std::lock_guard lock(mu_);
  auto it = peer_of_epoch_.find(epoch);
  if (it == peer_of_epoch_.end()) return std::nullopt;
  return it->second;
}

std::shared_ptr<Node> Node::NodeOf(PeerId peer) const {
  std::lock_guard lock(mu_);
  auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : it->second;
}

// Drops the peer and everything under way to and from it.
void Node::Lose(uint64_t epoch, const absl::Status& why, Tell tell) {
  std::vector<std::shared_ptr<Parcel>> failed;
  PeerId peer = 0;
  {
    std::lock_guard lock(mu_);
    auto it = peer_of_epoch_.find(epoch);
    if (it == peer_of_epoch_.end()) return;
    peer = it->second;
    peers_.erase(peer);
    peer_of_epoch_.erase(it);
    std::erase_if(offers_, [&](const auto& entry) { return entry.second.from == epoch; });
    for (const auto& parcel : posted_) {
      if (parcel->to() == epoch) failed.push_back(parcel);
    }
  }
  for (const auto& parcel : failed) parcel->Finish(parcel, why);
  if (tell == Tell::kNobody) return;
  // By way of the bulk thread, so that an offer that is being delivered comes before the loss.
  bulk_.Post([self = shared_from_this(), peer, epoch, why] {
    self->control_.Post([self, peer, epoch, why] {
      if (auto* handler = self->handler_.load()) handler->OnPeerLost(peer, epoch, why);
    });
  });
}

void Node::Disconnect(PeerId peer) {
  std::shared_ptr<Node> node = NodeOf(peer);
  if (node == nullptr) return;
  Lose(node->epoch(), absl::UnavailableError("disconnected"), Tell::kNobody);
  node->Lose(epoch_, absl::UnavailableError("the peer disconnected"), Tell::kHandler);
}

void Node::Stop() {
  hub_->Remove(epoch_);
  std::map<PeerId, std::shared_ptr<Node>> peers;
  {
    std::lock_guard lock(mu_);
    stopped_ = true;
    peers = peers_;
  }
  for (const auto& [peer, node] : peers) {
    Lose(node->epoch(), absl::UnavailableError("the transport stopped"), Tell::kNobody);
    node->Lose(epoch_, absl::UnavailableError("the peer stopped"), Tell::kHandler);
  }
  bulk_.Stop();
  control_.Stop();
}

absl::Status Node::SendControl(PeerId peer, std::vector<std::byte> message) {
  if (message.size() > kMaxControlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("control message of ", message.size(), " bytes, at most ", kMaxControlBytes));
  }
  std::shared_ptr<Node> node = NodeOf(peer);
  if (node == nullptr) return absl::UnavailableError(absl::StrCat("peer ", peer, " is gone"));
  node->Deliver(epoch_, std::move(message));
  return absl::OkStatus();
}

void Node::Deliver(uint64_t from, std::vector<std::byte> message) {
  control_.Post([self = shared_from_this(), from, message = std::move(message)] {
    auto* handler = self->handler_.load();
    if (handler != nullptr && self->FindPeer(from).has_value()) handler->OnControl(from, message);
  });
}

void Node::Post(PeerId peer, std::vector<std::byte> header, MemoryView payload,
                std::function<void(absl::Status)> done) {
  std::shared_ptr<Node> node = NodeOf(peer);
  auto parcel = std::make_shared<Parcel>(shared_from_this(), node ? node->epoch() : 0,
                                         std::move(header), payload, std::move(done));
  {
    std::lock_guard lock(mu_);
    if (stopped_) return;
    if (peers_.contains(peer))
      posted_.insert(parcel);
    else
      node = nullptr;
  }
  if (node == nullptr) {
    parcel->Finish(parcel, absl::UnavailableError(absl::StrCat("peer ", peer, " is gone")));
  } else if (parcel->header().size() > kMaxHeaderBytes) {
    parcel->Finish(
        parcel, absl::InvalidArgumentError(absl::StrCat("bulk header of ", parcel->header().size(),
                                                        " bytes, at most ", kMaxHeaderBytes)));
  } else {
    node->Receive(epoch_, parcel);
  }
}

void Node::Receive(uint64_t from, std::shared_ptr<Parcel> parcel) {
  OfferId id = 0;
  {
    std::lock_guard lock(mu_);
    if (!peer_of_epoch_.contains(from)) return;  // its post fails when it learns of the loss
    id = next_offer_++;
    offers_[id] = {from, parcel};
  }
  bulk_.Post([self = shared_from_this(), id, from, parcel = std::move(parcel)] {
    {
      std::lock_guard lock(self->mu_);
      if (!self->offers_.contains(id)) return;
    }
    if (auto* handler = self->handler_.load()) {
      handler->OnOffer(id, from, parcel->header(), parcel->payload_bytes());
    }
  });
}

std::shared_ptr<Parcel> Node::Take(OfferId offer) {
  std::lock_guard lock(mu_);
  auto it = offers_.find(offer);
  if (it == offers_.end()) return nullptr;
  std::shared_ptr<Parcel> parcel = std::move(it->second.parcel);
  offers_.erase(it);
  return parcel;
}

void Node::Pull(OfferId offer, MutableMemoryView destination,
                std::function<void(absl::Status)> done) {
  bulk_.Post([self = shared_from_this(), offer, destination, done = std::move(done)] {
    std::shared_ptr<Parcel> parcel = self->Take(offer);
    if (parcel == nullptr) {
      return done(absl::UnavailableError(absl::StrCat("offer ", offer, " is void")));
    }
    LYNX_CHECK(destination.size() == parcel->payload_bytes());
    const bool copied = parcel->CopyTo(destination, self->device_);
    if (copied) parcel->Finish(parcel, absl::OkStatus());
    done(copied ? absl::OkStatus() : absl::UnavailableError("the sender took the payload back"));
  });
}

void Node::Drop(OfferId offer) {
  std::shared_ptr<Parcel> parcel = Take(offer);
  if (parcel != nullptr) parcel->Finish(parcel, absl::OkStatus());
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub> hub, const DeviceChunks* device)
      : takes_device_memory_(device != nullptr),
        node_(std::make_shared<Node>(std::move(hub), device)) {}
  ~LoopbackTransport() override { Stop(); }

  uint64_t epoch() const override { return node_->epoch(); }
  std::string address() const override {
    const uint64_t epoch = node_->epoch();
    std::string address(kAddressPrefix);
    address.append(reinterpret_cast<const char*>(&epoch), sizeof(epoch));
    return address;
  }
  void Start(TransportHandler* handler) override { node_->Start(handler); }
  void Stop() override { node_->Stop(); }
  absl::StatusOr<PeerId> Connect(std::string_view address) override {
    return node_->Connect(address);
  }
  std::optional<PeerId> FindPeer(uint64_t epoch) const override { return node_->FindPeer(epoch); }
  void Disconnect(PeerId peer) override { node_->Disconnect(peer); }
  absl::Status SendControl(PeerId peer, std::vector<std::byte> message) override {
    return node_->SendControl(peer, std::move(message));
  }
  void Post(PeerId peer, Urgency, std::vector<std::byte> header, MemoryView payload,
            std::function<void(absl::Status)> done) override {
    node_->Post(peer, std::move(header), payload, std::move(done));
  }
  void Pull(OfferId offer, MutableMemoryView destination,
            std::function<void(absl::Status)> done) override {
    node_->Pull(offer, destination, std::move(done));
  }
  bool takes_device_memory() const override { return takes_device_memory_; }
  void Drop(OfferId offer) override { node_->Drop(offer); }

 private:
  const bool takes_device_memory_;
  const std::shared_ptr<Node> node_;
};

}  // namespace

std::shared_ptr<LoopbackHub> MakeLoopbackHub() { return std::make_shared<LoopbackHub>(); }

std::unique_ptr<Transport> MakeLoopbackTransport(std::shared_ptr<LoopbackHub> hub,
                                                 const DeviceChunks* device) {
  return std::make_unique<LoopbackTransport>(std::move(hub), device);
}

}  // namespace lynx
