// SPDX-License-Identifier: Apache-2.0
// The transport over UCX: a control and a bulk lane, each with its context and thread.
//
// Life of a peer:
//   1. Connect (or a Hello from one that connected to us) dials a control link. The first message
//      on it is a Hello with our address, so that both sides are connected. The bulk links, one for
//      each urgency, are dialled by the one who connects at once, by the other with its first Post.
//   2. Beats on control every heartbeat interval, both ways. Any control message counts as one.
//   3. A link's error, silence, a Bye or Disconnect ends it: the control thread closes its link,
//      then the bulk thread closes its own and voids the peer's offers, then the handler is told.
// A connection is named by (epoch, connection id of the side that sends); what still arrives of one
// that has ended is ignored. A later Connect to the same address is a new connection.
//
// Bulk messages are active messages by rendezvous. The handler keeps the descriptor
// (UCS_INPROGRESS) as an offer until Pull receives it or Drop releases it.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/clock.h"
#include "lynx/transport.h"
#include "transport/random_epoch.h"
#include "transport/tcp_sockets.h"
#include "transport/ucx_address.h"
#include "transport/ucx_lane.h"
#include "transport/ucx_settings.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
// UCX opens a connection's sockets one by one; until this old they are looked for and marked.
constexpr int64_t kMarkingNs = 5'000 * kNsPerMs;
constexpr auto kMaxFirstContact = std::chrono::seconds(3);
constexpr std::array kUrgencies = {Urgency::kUrgent, Urgency::kPatient};
constexpr int kControlTypeOfService = 0xb8;      // DSCP EF
constexpr int kControlMinRetransmitUs = 40'000;  // as long as an acknowledgement may be delayed

enum class Kind : uint8_t { kHello = 1, kBeat = 2, kUser = 3, kBye = 4 };

// In front of every header.
struct Preamble {
  uint64_t epoch = 0;
  uint64_t connection = 0;  // the sender's PeerId for this connection
  Kind kind = Kind::kUser;
};
constexpr size_t kPreambleBytes = 17;

std::vector<std::byte> Serialize(const Preamble& preamble, std::span<const std::byte> header) {
  std::vector<std::byte> bytes(kPreambleBytes + header.size());
  std::memcpy(bytes.data(), &preamble.epoch, 8);
  std::memcpy(bytes.data() + 8, &preamble.connection, 8);
  std::memcpy(bytes.data() + 16, &preamble.kind, 1);
  if (!header.empty()) std::memcpy(bytes.data() + kPreambleBytes, header.data(), header.size());
  return bytes;
}

bool Parse(std::span<const std::byte> bytes, Preamble& preamble) {
  if (bytes.size() < kPreambleBytes) return false;
  std::memcpy(&preamble.epoch, bytes.data(), 8);
  std::memcpy(&preamble.connection, bytes.data() + 8, 8);
  std::memcpy(&preamble.kind, bytes.data() + 16, 1);
  return true;
}

class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxOptions& options, std::unique_ptr<UcxLane> control,
               std::unique_ptr<UcxLane> bulk)
      : options_(options),
        control_(std::move(control)),
        bulk_(std::move(bulk)),
        address_{.epoch = RandomEpoch(),
                 .control = control_->address(),
                 .bulk = bulk_->address(),
                 .control_ports = control_->listening_ports(),
                 .bulk_ports = bulk_->listening_ports()} {}
  ~UcxTransport() override { Stop(); }
  absl::Status Register();

  uint64_t epoch() const override { return address_.epoch; }
  std::string address() const override { return address_.Pack(); }
  void Start(TransportHandler* handler) override;
  void Stop() override;
  absl::StatusOr<PeerId> Connect(std::string_view address) override;
  std::optional<PeerId> FindPeer(uint64_t epoch) const override;
  void Disconnect(PeerId peer) override;
  absl::Status SendControl(PeerId peer, std::vector<std::byte> message) override;
  void Post(PeerId peer, Urgency urgency, std::vector<std::byte> header, MemoryView payload,
            std::function<void(absl::Status)> done) override;
  void Pull(OfferId offer, MutableMemoryView destination,
            std::function<void(absl::Status)> done) override;
  bool takes_device_memory() const override { return bulk_->takes_device_memory(); }
  void Drop(OfferId offer) override;

 private:
  using Connection = std::pair<uint64_t, uint64_t>;  // epoch and its connection id
  struct Peer {
    UcxAddress address;
    std::string packed_address;
    bool heard = false;  // its Hello has come
  };
  struct ControlPeer {
    uint64_t epoch = 0;
    UcxLane::Link* link = nullptr;
    uint64_t their_connection = 0;  // 0 = nothing heard yet
    int64_t connected_ns = 0;
  };
  // The connection that a peer's messages belong to now.
  struct Inbound {
    uint64_t connection = 0;
    int64_t heard_ns = 0;
  };
  struct BulkPeer {
    std::string address;
    std::array<UcxLane::Link*, kUrgencies.size()> links = {};  // null: not dialled yet
  };
  struct Offer {
    Connection from;
    size_t payload_bytes = 0;
    void* descriptor = nullptr;  // null: the payload came along
    std::vector<std::byte> payload;
  };
  enum class Tell { kHandler, kNobody };

  enum class DialBulk { kNow, kWhenPosting };
  absl::StatusOr<PeerId> ConnectLocked(std::string_view address, DialBulk dial);  // mutex held
  void Lose(PeerId peer, const absl::Status& why, Tell tell);

  // On the control thread.
  static ucs_status_t OnControlMessage(void* self, const void* header, size_t header_bytes,
                                       void* data, size_t bytes, const ucp_am_recv_param_t*);
  void OpenControl(PeerId peer, const UcxAddress& address);
  void CloseControl(PeerId peer, uint64_t epoch, const absl::Status& why, Tell tell);
  void OnHello(const Preamble& preamble, std::string_view address);
  bool HeardFrom(const Preamble& preamble);
  void SendOnControl(ControlPeer& peer, PeerId id, Kind kind, std::span<const std::byte> message);
  int64_t Tick(int64_t now_ns);
  void MarkYoungPeers(int64_t now_ns);

  // On the bulk thread.
  static ucs_status_t OnBulkMessage(void* self, const void* header, size_t header_bytes, void* data,
                                    size_t bytes, const ucp_am_recv_param_t* params);
  UcxLane::Link* BulkLink(PeerId peer, Urgency urgency);
  void CloseLinks(const BulkPeer& peer);
  void CloseBulk(PeerId peer, Connection theirs);
  ucs_status_t TakeOffer(const Preamble& preamble, std::span<const std::byte> header, void* data,
                         size_t bytes, bool rendezvous);

  const UcxOptions options_;
  const std::unique_ptr<UcxLane> control_;
  const std::unique_ptr<UcxLane> bulk_;
  const UcxAddress address_;
  TransportHandler* handler_ = nullptr;

  mutable std::mutex mu_;
  bool stopped_ = false;
  PeerId next_peer_ = 1;
  std::map<PeerId, Peer> peers_;
  std::map<std::string, PeerId, std::less<>> peer_of_address_;
  std::map<uint64_t, PeerId> peer_of_epoch_;
  std::condition_variable peer_heard_;

  // The control thread's own.
  std::map<PeerId, ControlPeer> control_peers_;
  std::map<uint64_t, Inbound> inbound_;  // by epoch
  std::set<Connection> control_ended_;
  int64_t last_tick_ns_ = 0;

  // The bulk thread's own.
  std::map<PeerId, BulkPeer> bulk_peers_;
  std::set<Connection> bulk_ended_;
  std::map<OfferId, Offer> offers_;
  OfferId next_offer_ = 1;
};

absl::Status UcxTransport::Register() {
  LYNX_RETURN_IF_ERROR(control_->Register(OnControlMessage, this));
  return bulk_->Register(OnBulkMessage, this);
}

void UcxTransport::Start(TransportHandler* handler) {
  handler_ = handler;
  bulk_->Start(nullptr);
  control_->Start([this](int64_t now_ns) { return Tick(now_ns); });
}

void UcxTransport::Stop() {
  {
    std::unique_lock lock(mu_);
    stopped_ = true;
    // A connection that is being made is made first (ucx_lane.h says why).
    peer_heard_.wait_for(lock, kMaxFirstContact, [this] {
      return std::all_of(peers_.begin(), peers_.end(),
                         [](const auto& entry) { return entry.second.heard; });
    });
    peers_.clear();
    peer_of_address_.clear();
    peer_of_epoch_.clear();
  }
  // Control first: its tasks may still want the bulk thread.
  control_->Stop([this] {
    for (auto& [id, peer] : control_peers_) {
      SendOnControl(peer, id, Kind::kBye, {});
      control_->Close(peer.link);
    }
    control_peers_.clear();
  });
  bulk_->Stop([this] {
    for (const auto& [id, peer] : bulk_peers_) CloseLinks(peer);
    bulk_peers_.clear();
    for (const auto& [id, offer] : offers_) {
      if (offer.descriptor != nullptr) bulk_->Release(offer.descriptor);
    }
    offers_.clear();
  });
}

// ---- peers --------------------------------------------------------------------------------------

absl::StatusOr<PeerId> UcxTransport::Connect(std::string_view packed) {
  std::lock_guard lock(mu_);
  if (stopped_) return absl::UnavailableError("this transport is stopped");
  if (auto it = peer_of_address_.find(packed); it != peer_of_address_.end()) return it->second;
  return ConnectLocked(packed, DialBulk::kNow);
}

absl::StatusOr<PeerId> UcxTransport::ConnectLocked(std::string_view packed, DialBulk dial) {
  LYNX_ASSIGN_OR_RETURN(UcxAddress address, UcxAddress::Parse(packed));
  if (address.epoch == address_.epoch) {
    return absl::InvalidArgumentError("a UCX transport cannot connect to itself");
  }
  if (peer_of_epoch_.contains(address.epoch)) {
    return absl::InvalidArgumentError(
        absl::StrCat("UCX transport ", address.epoch, " is connected by another address"));
  }
  const PeerId id = next_peer_++;
  peers_[id] = {address, std::string(packed)};
  peer_of_address_[std::string(packed)] = id;
  peer_of_epoch_[address.epoch] = id;
  control_->Run([this, id, address] { OpenControl(id, address); });
  bulk_->Run([this, id, address, dial] {
    bulk_peers_[id] = {.address = address.bulk};
    if (dial == DialBulk::kWhenPosting) return;
    for (Urgency urgency : kUrgencies) BulkLink(id, urgency);
  });
  return id;
}

std::optional<PeerId> UcxTransport::FindPeer(uint64_t epoch) const {
  std::lock_guard lock(mu_);
  auto it = peer_of_epoch_.find(epoch);
  if (it == peer_of_epoch_.end()) return std::nullopt;
  return it->second;
}

void UcxTransport::Disconnect(PeerId peer) {
  Lose(peer, absl::UnavailableError("disconnected"), Tell::kNobody);
}

// Any thread. From here on nobody finds the peer; the threads then close what they have of it.
void UcxTransport::Lose(PeerId id, const absl::Status& why, Tell tell) {
  std::lock_guard lock(mu_);
  auto it = peers_.find(id);
  if (it == peers_.end()) return;
  const uint64_t epoch = it->second.address.epoch;
  peer_of_address_.erase(it->second.packed_address);
  peer_of_epoch_.erase(epoch);
  peers_.erase(it);
  peer_heard_.notify_all();
  if (tell == Tell::kHandler) spdlog::warn("transport: lost peer {:x}: {}", epoch, why.ToString());
  control_->Run([this, id, epoch, why, tell] { CloseControl(id, epoch, why, tell); });
}

void UcxTransport::OpenControl(PeerId id, const UcxAddress& address) {
  absl::StatusOr<UcxLane::Link*> link = control_->Dial(
      address.control, [this, id](const absl::Status& why) { Lose(id, why, Tell::kHandler); });
  if (!link.ok()) return Lose(id, link.status(), Tell::kHandler);
  ControlPeer& peer = control_peers_[id];
  peer = {.epoch = address.epoch, .link = *link, .connected_ns = MonotonicNs()};
  if (auto it = inbound_.find(address.epoch); it != inbound_.end()) {
    peer.their_connection = it->second.connection;
  }
  const std::string own = address_.Pack();
  SendOnControl(peer, id, Kind::kHello, std::as_bytes(std::span(own)));
}

// Dials it if need be; null when that fails or the peer is gone.
UcxLane::Link* UcxTransport::BulkLink(PeerId id, Urgency urgency) {
  auto it = bulk_peers_.find(id);
  if (it == bulk_peers_.end()) return nullptr;
  UcxLane::Link*& link = it->second.links[static_cast<size_t>(urgency)];
  if (link == nullptr) {
    absl::StatusOr<UcxLane::Link*> dialled = bulk_->Dial(
        it->second.address, [this, id](const absl::Status& why) { Lose(id, why, Tell::kHandler); });
    if (!dialled.ok()) {
      Lose(id, dialled.status(), Tell::kHandler);
      return nullptr;
    }
    link = *dialled;
  }
  return link;
}

void UcxTransport::CloseControl(PeerId id, uint64_t epoch, const absl::Status& why, Tell tell) {
  Connection theirs{epoch, 0};
  if (auto it = control_peers_.find(id); it != control_peers_.end()) {
    theirs.second = it->second.their_connection;
    if (tell == Tell::kNobody) SendOnControl(it->second, id, Kind::kBye, {});
    control_->Close(it->second.link);
    control_peers_.erase(it);
  }
  if (theirs.second != 0) control_ended_.insert(theirs);
  if (auto it = inbound_.find(epoch);
      it != inbound_.end() && it->second.connection == theirs.second) {
    inbound_.erase(it);
  }
  bulk_->Run([this, id, theirs, why, tell] {
    CloseBulk(id, theirs);
    if (tell == Tell::kNobody) return;
    control_->Run([this, id, theirs, why] { handler_->OnPeerLost(id, theirs.first, why); });
  });
}

void UcxTransport::CloseLinks(const BulkPeer& peer) {
  for (UcxLane::Link* link : peer.links) {
    if (link != nullptr) bulk_->Close(link);
  }
}

void UcxTransport::CloseBulk(PeerId id, Connection theirs) {
  if (auto it = bulk_peers_.find(id); it != bulk_peers_.end()) {
    CloseLinks(it->second);
    bulk_peers_.erase(it);
  }
  if (theirs.second != 0) bulk_ended_.insert(theirs);
  // When its Hello never came, nothing tells its connections apart: all of them end.
  std::erase_if(offers_, [&](const auto& entry) {
    const Offer& offer = entry.second;
    if (offer.from.first != theirs.first) return false;
    if (theirs.second == 0) bulk_ended_.insert(offer.from);
    if (theirs.second != 0 && offer.from != theirs) return false;
    if (offer.descriptor != nullptr) bulk_->Release(offer.descriptor);
    return true;
  });
}

// ---- control ------------------------------------------------------------------------------------

absl::Status UcxTransport::SendControl(PeerId id, std::vector<std::byte> message) {
  if (message.size() > kMaxControlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("control message of ", message.size(), " bytes, at most ", kMaxControlBytes));
  }
  std::lock_guard lock(mu_);
  if (!peers_.contains(id)) return absl::UnavailableError(absl::StrCat("peer ", id, " is gone"));
  control_->Run([this, id, message = std::move(message)] {
    auto it = control_peers_.find(id);
    if (it != control_peers_.end()) SendOnControl(it->second, id, Kind::kUser, message);
  });
  return absl::OkStatus();
}

void UcxTransport::SendOnControl(ControlPeer& peer, PeerId id, Kind kind,
                                 std::span<const std::byte> message) {
  auto body = std::make_shared<const std::vector<std::byte>>(message.begin(), message.end());
  const std::span<const std::byte> bytes(*body);
  // A failed message means a failed endpoint, which reports itself.
  control_->Send(peer.link, UcxLane::Protocol::kEager, Serialize({address_.epoch, id, kind}, {}),
                 bytes, [body = std::move(body)](const absl::Status&) {});
}

ucs_status_t UcxTransport::OnControlMessage(void* argument, const void* header, size_t header_bytes,
                                            void* data, size_t bytes,
                                            const ucp_am_recv_param_t* params) {
  auto* self = static_cast<UcxTransport*>(argument);
  Preamble preamble;
  if ((params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_ERR_REJECTED;
  if (!Parse({static_cast<const std::byte*>(header), header_bytes}, preamble)) return UCS_OK;
  if (preamble.kind == Kind::kHello) {
    self->OnHello(preamble, {static_cast<const char*>(data), bytes});
  } else if (self->HeardFrom(preamble)) {
    if (preamble.kind == Kind::kUser) {
      self->handler_->OnControl(preamble.epoch, {static_cast<const std::byte*>(data), bytes});
    } else if (preamble.kind == Kind::kBye) {
      if (std::optional<PeerId> peer = self->FindPeer(preamble.epoch)) {
        self->Lose(*peer, absl::UnavailableError("the peer disconnected"), Tell::kHandler);
      }
    }
  }
  return UCS_OK;
}

// False for what is left of a connection that has ended.
bool UcxTransport::HeardFrom(const Preamble& preamble) {
  auto it = inbound_.find(preamble.epoch);
  if (it == inbound_.end() || it->second.connection != preamble.connection) return false;
  it->second.heard_ns = MonotonicNs();
  return true;
}

void UcxTransport::OnHello(const Preamble& preamble, std::string_view packed) {
  const Connection from{preamble.epoch, preamble.connection};
  if (control_ended_.contains(from)) return;
  inbound_[preamble.epoch] = {preamble.connection, MonotonicNs()};
  for (auto& [id, peer] : control_peers_) {
    if (peer.epoch != preamble.epoch) continue;
    if (peer.their_connection == 0) peer.their_connection = preamble.connection;
    if (peer.their_connection == preamble.connection) continue;
    // It lost us and connects anew.
    Lose(id, absl::UnavailableError("the peer has reconnected"), Tell::kHandler);
  }
  std::lock_guard lock(mu_);
  // An address that UCX refuses is lost in OpenControl.
  if (!stopped_ && !peer_of_epoch_.contains(preamble.epoch)) {
    (void)ConnectLocked(packed, DialBulk::kWhenPosting);
  }
  if (auto it = peer_of_epoch_.find(preamble.epoch); it != peer_of_epoch_.end()) {
    peers_[it->second].heard = true;
    peer_heard_.notify_all();
  }
}

// Heartbeats, the watch for silent peers, and marks on new sockets.
int64_t UcxTransport::Tick(int64_t now_ns) {
  const int64_t interval_ns = options_.heartbeat_interval_ms * kNsPerMs;
  // When this thread itself was held up, the silence is its own.
  const int64_t late_ns = last_tick_ns_ == 0 ? 0 : now_ns - last_tick_ns_ - interval_ns;
  last_tick_ns_ = now_ns;
  for (auto& [id, peer] : control_peers_) {
    // The first answer takes a connection in each direction.
    const auto inbound = inbound_.find(peer.epoch);
    const int patience = inbound == inbound_.end() ? 2 : 1;
    int64_t& heard_ns = inbound == inbound_.end() ? peer.connected_ns : inbound->second.heard_ns;
    if (late_ns > interval_ns) heard_ns += late_ns;
    const int64_t silent_ns = now_ns - heard_ns;
    if (silent_ns > patience * options_.suspect_after_ms * kNsPerMs) {
      Lose(id,
           absl::UnavailableError(absl::StrCat("no heartbeat for ", silent_ns / kNsPerMs, " ms")),
           Tell::kHandler);
    } else {
      SendOnControl(peer, id, Kind::kBeat, {});
    }
  }
  MarkYoungPeers(now_ns);
  return now_ns + interval_ns;
}

void UcxTransport::MarkYoungPeers(int64_t now_ns) {
  const bool any_young = std::any_of(
      control_peers_.begin(), control_peers_.end(),
      [now_ns](const auto& entry) { return now_ns - entry.second.connected_ns < kMarkingNs; });
  if (!any_young) return;
  std::set<uint16_t> control_ports = address_.control_ports;
  std::set<uint16_t> bulk_ports = address_.bulk_ports;
  {
    std::lock_guard lock(mu_);
    for (const auto& [id, peer] : peers_) {
      control_ports.insert(peer.address.control_ports.begin(), peer.address.control_ports.end());
      bulk_ports.insert(peer.address.bulk_ports.begin(), peer.address.bulk_ports.end());
    }
  }
  MarkSockets(control_ports, {.type_of_service = kControlTypeOfService,
                              .user_timeout_ms = options_.tcp_user_timeout_ms,
                              .min_retransmit_us = kControlMinRetransmitUs});
  MarkSockets(bulk_ports, {.user_timeout_ms = options_.tcp_user_timeout_ms});
}

// ---- bulk ---------------------------------------------------------------------------------------

void UcxTransport::Post(PeerId id, Urgency urgency, std::vector<std::byte> header,
                        MemoryView payload, std::function<void(absl::Status)> done) {
  bulk_->Run([this, id, urgency, header = std::move(header), payload, done = std::move(done)] {
    UcxLane::Link* link = BulkLink(id, urgency);
    if (link == nullptr) {
      return done(absl::UnavailableError(absl::StrCat("peer ", id, " is gone")));
    }
    if (header.size() > kMaxHeaderBytes) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("bulk header of ", header.size(), " bytes, at most ", kMaxHeaderBytes)));
    }
    const auto protocol =
        payload.size() == 0 ? UcxLane::Protocol::kEager : UcxLane::Protocol::kRendezvous;
    // Refused: the peer lost us, perhaps while this process was stopped, and we have not noticed.
    auto sent = [this, id, done](const absl::Status& status) {
      if (!absl::IsAborted(status)) return done(status);
      const absl::Status lost = absl::UnavailableError("the peer has ended this connection");
      Lose(id, lost, Tell::kHandler);
      done(lost);
    };
    bulk_->Send(link, protocol, Serialize({.epoch = address_.epoch, .connection = id}, header),
                payload, std::move(sent));
  });
}

ucs_status_t UcxTransport::OnBulkMessage(void* argument, const void* header_data,
                                         size_t header_bytes, void* data, size_t bytes,
                                         const ucp_am_recv_param_t* params) {
  auto* self = static_cast<UcxTransport*>(argument);
  const std::span header(static_cast<const std::byte*>(header_data), header_bytes);
  Preamble preamble;
  // UCX takes an error for an answer to a rendezvous message only.
  const bool rendezvous = (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const ucs_status_t refused = rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  if (!Parse(header, preamble) || preamble.kind != Kind::kUser ||
      self->bulk_ended_.contains({preamble.epoch, preamble.connection})) {
    return refused;
  }
  return self->TakeOffer(preamble, header.subspan(kPreambleBytes), data, bytes, params->recv_attr);
}

ucs_status_t UcxTransport::TakeOffer(const Preamble& preamble, std::span<const std::byte> header,
                                     void* data, size_t bytes, bool rendezvous) {
  const OfferId id = next_offer_++;
  Offer& offer = offers_[id];
  offer.from = {preamble.epoch, preamble.connection};
  offer.payload_bytes = bytes;
  if (rendezvous) {
    offer.descriptor = data;
  } else if (bytes > 0) {
    const auto* payload = static_cast<const std::byte*>(data);
    offer.payload.assign(payload, payload + bytes);
  }
  handler_->OnOffer(id, preamble.epoch, header, bytes);
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void UcxTransport::Pull(OfferId id, MutableMemoryView destination,
                        std::function<void(absl::Status)> done) {
  bulk_->Run([this, id, destination, done = std::move(done)] {
    auto node = offers_.extract(id);
    if (node.empty()) {
      return done(absl::UnavailableError(absl::StrCat("offer ", id, " is void")));
    }
    const Offer& offer = node.mapped();
    LYNX_CHECK(destination.size() == offer.payload_bytes);
    if (offer.descriptor != nullptr) return bulk_->Receive(offer.descriptor, destination, done);
    if (destination.on_device() && destination.size() > 0) {
      return done(absl::DataLossError("the peer sent a payload without rendezvous"));
    }
    std::copy(offer.payload.begin(), offer.payload.end(), destination.bytes.begin());
    done(absl::OkStatus());
  });
}

void UcxTransport::Drop(OfferId id) {
  bulk_->Run([this, id] {
    auto node = offers_.extract(id);
    if (node.empty() || node.mapped().descriptor == nullptr) return;
    bulk_->Release(node.mapped().descriptor);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options) {
  UcxOptions host_only = options;
  host_only.use_device = nullptr;
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<UcxLane> control, UcxLane::Create(host_only));
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<UcxLane> bulk, UcxLane::Create(options));
  auto transport = std::make_unique<UcxTransport>(options, std::move(control), std::move(bulk));
  LYNX_RETURN_IF_ERROR(transport->Register());
  if (options.use_device != nullptr) {
    spdlog::info("transport: encoded KV moves {}",
                 transport->takes_device_memory()
                     ? "from and to device memory"
                     : absl::StrCat("through host memory: ", WhyNoDeviceMemory()));
  }
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace lynx
