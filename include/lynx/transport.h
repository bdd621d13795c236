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
// thread of this transport; they must not block. All methods may be called from any thread,
// handlers included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/status.h"

namespace lynx {

using PeerId = uint64_t;   // one connection to one life of a peer process; never reused
using OfferId = uint64_t;  // one posted bulk message as seen by its receiver; never reused

class TransportHandler {
 public:
  virtual ~TransportHandler() = default;
  // A control message from a peer. `from` is the transport epoch of the sender (see epoch()).
  virtual void OnControl(uint64_t from, std::span<const std::byte> message) = 0;
  // A peer posted a bulk message. Answer, now or later, with Pull or Drop.
  virtual void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
                       size_t payload_bytes) = 0;
  // The peer's endpoint failed or its heartbeats stopped; nothing more comes from it. Offers from
  // it are void (a Pull under way completes with an error).
  virtual void OnPeerLost(uint64_t epoch, const absl::Status& why) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;  // stops the threads; no handler runs afterwards

  // A random number that names this life of this process.
  virtual uint64_t epoch() const = 0;
  // What a peer needs to Connect to us. Opaque bytes, carried by gRPC.
  virtual std::string address() const = 0;
  // Called once, before the first Connect and before the address leaves the process.
  virtual void Start(TransportHandler* handler) = 0;

  // Connects to a peer's address(); returns at once with the same PeerId for the same address.
  virtual absl::StatusOr<PeerId> Connect(std::string_view address) = 0;
  virtual void Disconnect(PeerId peer) = 0;

  virtual absl::Status SendControl(PeerId peer, std::vector<std::byte> message) = 0;

  // Posts a bulk message. `payload` stays valid until `done` runs: with OK when the receiver has
  // pulled or dropped it (which does not prove delivery: the receiver's ack does), else the error.
  virtual void Post(PeerId peer, std::vector<std::byte> header, std::span<const std::byte> payload,
                    std::function<void(absl::Status)> done) = 0;

  // Moves an offered payload into `destination` (exactly payload_bytes long, valid until `done`).
  virtual void Pull(OfferId offer, std::span<std::byte> destination,
                    std::function<void(absl::Status)> done) = 0;
  // Refuses an offered payload; nothing is moved.
  virtual void Drop(OfferId offer) = 0;
};

// UCX over TCP, shared memory or RDMA.
struct UcxOptions {
  std::string tls;                    // UCX_TLS; empty = UCX's environment or "tcp,self"
  int heartbeat_interval_ms = 250;
  int suspect_after_ms = 1500;
  int tcp_user_timeout_ms = 1500;
};
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options);

// In one process, for tests and `--colocated`-like set-ups: transports of one hub reach each other.
class LoopbackHub;
std::shared_ptr<LoopbackHub> MakeLoopbackHub();
std::unique_ptr<Transport> MakeLoopbackTransport(std::shared_ptr<LoopbackHub> hub);

}  // namespace lynx
