// SPDX-License-Identifier: Apache-2.0
// A transport for `lynx bench incast`: measures the round trip of small messages beside the bulk,
// and moves bulk in the order of the schemes that Lynx is compared with.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <vector>

#include "lynx/transport.h"
#include "lynx/types.h"

namespace lynx {

// Who decides what moves next.
enum class IncastPolicy : uint8_t {
  kLynx,          // the receiver, over all senders
  kSenderStrict,  // each sender for itself: its anchors before its other bytes
  kTwoStreams,    // nobody: anchors and the rest of each sender are two streams, each in order
  kFifo,          // nobody: each sender is one stream, in order of arrival
};
std::string_view Name(IncastPolicy policy);

struct ControlProbe {
  int64_t sent_ns = 0;
  int64_t round_trip_ns = 0;
};

// With kLynx pulls pass through. With the others the receiver above asks for everything at once
// (its window is as good as infinite), and a stream has `stream_window_bytes` under way at most.
// Thread-safe.
class IncastTransport final : public Transport, public TransportHandler {
 public:
  IncastTransport(std::unique_ptr<Transport> inner, IncastPolicy policy,
                  size_t stream_window_bytes);
  ~IncastTransport() override { Stop(); }

  // Sends a small message that the peer's IncastTransport sends back.
  void Probe(PeerId peer);
  std::vector<ControlProbe> probes() const;

  uint64_t epoch() const override { return inner_->epoch(); }
  std::string address() const override { return inner_->address(); }
  void Start(TransportHandler* handler) override;
  void Stop() override { inner_->Stop(); }
  absl::StatusOr<PeerId> Connect(std::string_view address) override {
    return inner_->Connect(address);
  }
  std::optional<PeerId> FindPeer(uint64_t epoch) const override { return inner_->FindPeer(epoch); }
  void Disconnect(PeerId peer) override { inner_->Disconnect(peer); }
  absl::Status SendControl(PeerId peer, std::vector<std::byte> message) override {
    return inner_->SendControl(peer, std::move(message));
  }
  void Post(PeerId peer, Urgency urgency, std::vector<std::byte> header, MemoryView payload,
            std::function<void(absl::Status)> done) override {
    if (policy_ == IncastPolicy::kFifo) urgency = Urgency::kPatient;  // one stream
    inner_->Post(peer, urgency, std::move(header), payload, std::move(done));
  }
  void Pull(OfferId offer, MutableMemoryView destination,
            std::function<void(absl::Status)> done) override;
  void Drop(OfferId offer) override;

  void OnControl(uint64_t from, std::span<const std::byte> message) override;
  void OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
               size_t payload_bytes) override;
  void OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) override;

 private:
  using StreamKey = std::pair<uint64_t, bool>;  // sender, whether it is the stream of the rest
  // Anchors first or not, order of the attempt's first offer, stage, order of the offer.
  using Rank = std::tuple<bool, int64_t, int, OfferId>;
  struct Offered {
    StreamKey stream;
    Rank rank;
  };
  struct WantedPull {
    OfferId offer;
    MutableMemoryView destination;
    std::function<void(absl::Status)> done;
  };
  struct Stream {
    std::map<Rank, WantedPull> wanted;
    size_t outstanding_bytes = 0;
  };

  std::vector<WantedPull> TakeDue(Stream& stream) const;  // mutex held
  void Issue(std::vector<WantedPull> pulls, StreamKey key);

  const std::unique_ptr<Transport> inner_;
  const IncastPolicy policy_;
  const size_t stream_window_bytes_;
  TransportHandler* handler_ = nullptr;

  mutable std::mutex mu_;
  std::vector<ControlProbe> probes_;
  std::map<AttemptId, int64_t> order_of_attempt_;
  std::map<OfferId, Offered> offered_;
  std::map<StreamKey, Stream> streams_;
};

}  // namespace lynx
