// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/transport.h"

#include <cstring>
#include <utility>

#include "core/clock.h"
#include "handoff/wire.h"

namespace lynx {
namespace {

constexpr std::array<char, 4> kAsk = {'a', 's', 'k', '?'};
constexpr std::array<char, 4> kReply = {'r', 'e', 'p', '!'};

std::vector<std::byte> ProbeMessage(const std::array<char, 4>& kind, int64_t sent_ns) {
  std::vector<std::byte> message(kind.size() + sizeof sent_ns);
  std::memcpy(message.data(), kind.data(), kind.size());
  std::memcpy(message.data() + kind.size(), &sent_ns, sizeof sent_ns);
  return message;
}

// The time in it when the message is of this kind.
std::optional<int64_t> ParseProbe(const std::array<char, 4>& kind,
                                  std::span<const std::byte> message) {
  int64_t sent_ns = 0;
  if (message.size() != kind.size() + sizeof sent_ns) return std::nullopt;
  if (std::memcmp(message.data(), kind.data(), kind.size()) != 0) return std::nullopt;
  std::memcpy(&sent_ns, message.data() + kind.size(), sizeof sent_ns);
  return sent_ns;
}

}  // namespace

std::string_view Name(IncastPolicy policy) {
  switch (policy) {
    case IncastPolicy::kLynx:
      return "lynx";
    case IncastPolicy::kSenderStrict:
      return "sender_strict";
    case IncastPolicy::kTwoStreams:
      return "two_streams";
    case IncastPolicy::kFifo:
      return "fifo";
  }
  return "";
}

IncastTransport::IncastTransport(std::unique_ptr<Transport> inner, IncastPolicy policy,
                                 size_t stream_window_bytes)
    : inner_(std::move(inner)), policy_(policy), stream_window_bytes_(stream_window_bytes) {}

void IncastTransport::Start(TransportHandler* handler) {
  handler_ = handler;
  inner_->Start(this);
}

// ---- probes -------------------------------------------------------------------------------------

void IncastTransport::Probe(PeerId peer) {
  // One that is lost is missed in the count.
  (void)inner_->SendControl(peer, ProbeMessage(kAsk, MonotonicNs()));
}

std::vector<ControlProbe> IncastTransport::probes() const {
  std::lock_guard lock(mu_);
  return probes_;
}

void IncastTransport::OnControl(uint64_t from, std::span<const std::byte> message) {
  if (const auto sent_ns = ParseProbe(kAsk, message)) {
    if (const auto peer = inner_->FindPeer(from)) {
      (void)inner_->SendControl(*peer, ProbeMessage(kReply, *sent_ns));
    }
  } else if (const auto sent_ns = ParseProbe(kReply, message)) {
    std::lock_guard lock(mu_);
    probes_.push_back({*sent_ns, MonotonicNs() - *sent_ns});
  } else {
    handler_->OnControl(from, message);
  }
}

// ---- the order of pulls -------------------------------------------------------------------------

void IncastTransport::OnOffer(OfferId offer, uint64_t from, std::span<const std::byte> header,
                              size_t payload_bytes) {
  const auto chunk = ParseChunkHeader(header);
  if (policy_ != IncastPolicy::kLynx && chunk.ok()) {
    const bool later = chunk->stage > 0;
    std::lock_guard lock(mu_);
    const int64_t order =
        order_of_attempt_.emplace(chunk->attempt, order_of_attempt_.size()).first->second;
    offered_[offer] = {
        {from, policy_ == IncastPolicy::kTwoStreams && later},
        {policy_ == IncastPolicy::kSenderStrict && later, order, chunk->stage, offer}};
  }
  handler_->OnOffer(offer, from, header, payload_bytes);
}

void IncastTransport::OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) {
  handler_->OnPeerLost(peer, epoch, why);
}

void IncastTransport::Pull(OfferId offer, MutableMemoryView destination,
                           std::function<void(absl::Status)> done) {
  std::unique_lock lock(mu_);
  auto offered = offered_.extract(offer);
  if (offered.empty()) {
    lock.unlock();
    return inner_->Pull(offer, destination, std::move(done));
  }
  const auto& [key, rank] = offered.mapped();
  Stream& stream = streams_[key];
  stream.wanted[rank] = {offer, destination, std::move(done)};
  std::vector<WantedPull> due = TakeDue(stream);
  lock.unlock();
  Issue(std::move(due), key);
}

void IncastTransport::Drop(OfferId offer) {
  {
    std::lock_guard lock(mu_);
    offered_.erase(offer);
  }
  inner_->Drop(offer);
}

std::vector<IncastTransport::WantedPull> IncastTransport::TakeDue(Stream& stream) const {
  std::vector<WantedPull> due;
  while (!stream.wanted.empty()) {
    auto first = stream.wanted.begin();
    const size_t bytes = first->second.destination.size();
    if (stream.outstanding_bytes > 0 && stream.outstanding_bytes + bytes > stream_window_bytes_) {
      break;
    }
    stream.outstanding_bytes += bytes;
    due.push_back(std::move(first->second));
    stream.wanted.erase(first);
  }
  return due;
}

void IncastTransport::Issue(std::vector<WantedPull> pulls, StreamKey key) {
  for (WantedPull& pull : pulls) {
    inner_->Pull(pull.offer, pull.destination,
                 [this, key, bytes = pull.destination.size(),
                  done = std::move(pull.done)](const absl::Status& status) {
                   std::unique_lock lock(mu_);
                   Stream& stream = streams_[key];
                   stream.outstanding_bytes -= bytes;
                   std::vector<WantedPull> due = TakeDue(stream);
                   lock.unlock();
                   Issue(std::move(due), key);
                   done(status);
                 });
  }
}

}  // namespace lynx
