// SPDX-License-Identifier: Apache-2.0
// Moves bytes between daemons. Knows no KV.
//
// Two services, so that a small message never waits behind a large one:
//   control  small messages, reliable, in order per peer (heartbeats, acks, NACKs)
//   bulk     large messages whose *receiver* decides when each one moves: the sender posts header
//            and payload, the receiver is offered the header, and pulls the payload into memory of
//            its choice when its turn comes.
//
// Threads: control handlers run on the control thread, bulk handlers and completions on the bulk
// thread of this transport; they must not block. All methods but Stop may be called from any
// thread, handlers included, and with any lock held: no handler or completion ever runs inside a
// call of one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/memory_view.h"
#include "lynx/status.h"

namespace lynx {

using PeerId = uint64_t;   // one connection to one life of a peer process; never reused
using OfferId = uint64_t;  // one posted bulk message as seen by its receiver; never reused

// Of a bulk message. One of them does not wait on its way for payloads of the other.
enum class Urgency : uint8_t { kUrgent, kPatient };

inline constexpr size_t kMaxControlBytes = 16 << 10;
inline constexpr size_t kMaxHeaderBytes = 1024;  // of a bulk message

// Called by a started transport. `from` and `epoch` name a peer's life, see Transport::epoch().
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;
  // A control message from a peer.
  virtual void OnControl(uint64_t from, std::span<const std::byte> message) = 0;
  // A peer posted a bulk message. Answer, now or later, with Pull or Drop. The header is valid
  // during the call.
  virtual void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
                       size_t payload_bytes) = 0;
  // The peer's endpoint failed or its heartbeats stopped; nothing more comes from it. Offers from
  // it are void. A Pull under way completes with an error once no byte can arrive any more: from a
  // peer that hangs, that may be much later.
  virtual void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;  // stops as Stop does

  // A random number that names this life of this process.
  virtual uint64_t epoch() const = 0;
  // What a peer needs to Connect to us. Opaque bytes, carried by gRPC.
  virtual std::string address() const = 0;
  // Called once, before the first Connect and before the address leaves the process.
  virtual void Start(TransportHandler* handler) = 0;
  // Ends every connection and every thread. All pending completions run (with an error) before it
  // returns; no handler or completion runs afterwards. Later calls fail or do nothing, and drop
  // their completions without running them. Idempotent. The owner of the handler calls it before
  // the handler dies, and not from a handler.
  virtual void Stop() = 0;

  // Connects to a peer's address(); returns at once, with the same PeerId for the same address as
  // long as the peer is not lost. The peer becomes connected to us too. kUnavailable: not
  // reachable, or this transport has stopped.
  virtual absl::StatusOr<PeerId> Connect(std::string_view address) = 0;
  // The connected peer with this epoch, whoever connected first.
  virtual std::optional<PeerId> FindPeer(uint64_t epoch) const = 0;
  // Forgets the peer: its posts complete with an error, its offers are void. The peer itself sees
  // OnPeerLost.
  virtual void Disconnect(PeerId peer) = 0;

  // At most kMaxControlBytes. OK says that the message is on its way, not that it arrives.
  virtual absl::Status SendControl(PeerId peer, std::vector<std::byte> message) = 0;

  // Posts a bulk message with at most kMaxHeaderBytes of header. `payload` stays valid until `done`
  // runs: with OK when the receiver has pulled or dropped it (which does not prove delivery: the
  // receiver's ack does), else the error.
  virtual void Post(PeerId peer, Urgency urgency, std::vector<std::byte> header, MemoryView payload,
                    std::function<void(absl::Status)> done) = 0;

  // Moves an offered payload into `destination` (exactly payload_bytes long, valid until `done`).
  virtual void Pull(OfferId offer, MutableMemoryView destination,
                    std::function<void(absl::Status)> done) = 0;
  // Payloads and destinations may lie in the device's memory. The two sides of a message need not
  // agree.
  virtual bool takes_device_memory() const { return false; }
  // Refuses an offered payload; nothing is moved.
  virtual void Drop(OfferId offer) = 0;
};

// UCX over TCP, shared memory or RDMA. Takes device memory when it is asked to, this program was
// built for it (LYNX_UCX_CUDA) and the UCX at hand can; a log line says which.
struct UcxOptions {
  std::string tls;  // UCX_TLS; empty = UCX's environment or "tcp,self"
  int heartbeat_interval_ms = 250;
  int suspect_after_ms = 1500;
  int tcp_user_timeout_ms = 1500;
  // Not null: device memory is wanted. Makes the device the calling thread's; runs on every thread
  // that uses UCX.
  std::function<void()> use_device;
};
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options);

// In one process, for tests and `--colocated`-like set-ups: transports of one hub reach each other.
// `device` moves payloads from and to its memory; null: the host's only.
class DeviceChunks;
class LoopbackHub;
std::shared_ptr<LoopbackHub> MakeLoopbackHub();
std::unique_ptr<Transport> MakeLoopbackTransport(std::shared_ptr<LoopbackHub> hub,
                                                 const DeviceChunks* device = nullptr);

}  // namespace lynx
