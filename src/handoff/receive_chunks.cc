// SPDX-License-Identifier: Apache-2.0
// What is offered, what of it is pulled, and what the senders say.
#include <utility>

#include "core/clock.h"
#include "handoff/kv_receiver_impl.h"

namespace lynx {

// ---- the transport's threads --------------------------------------------------------------------

void KvReceiverImpl::OnOffer(OfferId id, uint64_t from, std::span<const std::byte> header_bytes,
                             size_t payload_bytes) {
  absl::StatusOr<ChunkHeader> header = ParseChunkHeader(header_bytes);
  Section section(outbox_);
  if (!header.ok()) {
    ++stats_.nacks;
    transport_.Drop(id);
    return;
  }
  const ChunkOffer offer{id, from, *header, payload_bytes};
  if (Attempt attempt = Find(header->attempt)) {
    Accept(attempt, offer);
    Pump();
  } else if (const ControlMessage* verdict = ended_.Find(header->attempt)) {
    const auto* abort = std::get_if<Abort>(verdict);
    Refuse(offer, abort != nullptr ? *abort
                                   : Abort{header->attempt, absl::StatusCode::kNotFound,
                                           "the attempt has ended"});
  } else {
    Hold(offer);
  }
}

void KvReceiverImpl::OnControl(uint64_t from, std::span<const std::byte> bytes) {
  const absl::StatusOr<ControlMessage> message = ParseControlMessage(bytes);
  if (!message.ok()) return;
  Section section(outbox_);
  if (const auto* announce = std::get_if<Announce>(&*message)) OnAnnounce(from, *announce);
  if (const auto* abort = std::get_if<Abort>(&*message)) OnAbort(from, *abort);
}

void KvReceiverImpl::OnPeerLost(PeerId peer, uint64_t epoch, const absl::Status& why) {
  Section section(outbox_);
  std::vector<Attempt> lost;
  for (const auto& [id, attempt] : attempts_) {
    // It may have come back before its loss is told, and have begun anew.
    const bool is_later = attempt->peer && *attempt->peer != peer;
    if (attempt->from == epoch && !is_later && !attempt->all_landed()) lost.push_back(attempt);
  }
  for (const Attempt& attempt : lost) Fail(attempt, why, Tell::kNobody);
  // Its pulls may end much later; they must not take the others' room meanwhile.
  std::erase_if(pulling_, [&](const auto& entry) {
    if (entry.second.from != epoch) return false;
    scheduler_.Completed(entry.second.payload_bytes);
    return true;
  });
  early_.ForgetSender(epoch);
  Pump();
}

// ---- with the mutex held ------------------------------------------------------------------------

// The attempt's sender is known.
void KvReceiverImpl::TakeFrom(ReceiveAttempt& attempt, uint64_t from) {
  attempt.from = from;
  attempt.peer = transport_.FindPeer(from);
  attempt.progress_ns = MonotonicNs();
}

// Queues the chunk, or refuses it.
void KvReceiverImpl::Accept(const Attempt& attempt, const ChunkOffer& offer) {
  const ChunkHeader& h = offer.header;
  if (attempt->from == 0) TakeFrom(*attempt, offer.from);
  if (attempt->from != offer.from) {
    return Refuse(offer, Abort{h.attempt, absl::StatusCode::kFailedPrecondition,
                               "the attempt belongs to another sender"});
  }
  if (absl::Status status = attempt->CheckHeader(h, offer.payload_bytes); !status.ok()) {
    ++stats_.nacks;
    transport_.Drop(offer.id);
    return Fail(attempt, std::move(status), Tell::kSender);
  }
  ReceivedChunk& chunk = attempt->chunk(h);
  if (chunk.state != ReceivedChunk::State::kMissing) {
    ++stats_.nacks;
    transport_.Drop(offer.id);
    return;
  }
  chunk.state = ReceivedChunk::State::kOffered;
  chunk.size = offer.payload_bytes;
  chunk.checksum = h.checksum;
  queued_[offer.id] = offer;
  scheduler_.Add({.offer = offer.id,
                  .attempt = h.attempt,
                  .stage = h.stage,
                  .bytes = offer.payload_bytes,
                  .num_parts = h.num_heads},
                 MonotonicNs());
}

void KvReceiverImpl::Hold(const ChunkOffer& offer) {
  if (!early_.Add(offer, MonotonicNs())) {
    return Refuse(offer, Abort{offer.header.attempt, absl::StatusCode::kResourceExhausted,
                               "too many chunks of unknown attempts"});
  }
  work_.notify_all();
}

void KvReceiverImpl::Refuse(const ChunkOffer& offer, const Abort& abort) {
  ++stats_.nacks;
  transport_.Drop(offer.id);
  Send(offer.from, abort);
}

void KvReceiverImpl::Pump() {
  while (std::optional<QueuedPull> pull = scheduler_.Next(MonotonicNs())) {
    auto offer = queued_.extract(pull->offer);
    Pull(*pull, offer.mapped());
  }
  const int64_t now = MonotonicNs();
  wait_clock_.Set(!queued_.empty(), now);
  pull_clock_.Set(!pulling_.empty(), now);
}

void KvReceiverImpl::Pull(const QueuedPull& pull, const ChunkOffer& offer) {
  const ChunkBytes bytes = MemoryFor(pull.bytes);
  const bool idle_before = scheduler_.outstanding_bytes() == pull.bytes;
  pulling_[offer.id] = offer;
  transport_.Pull(
      pull.offer, bytes.view(),
      [this, offer, bytes, issued_ns = MonotonicNs(), idle_before](const absl::Status& status) {
        Section section(outbox_);
        OnPulled(offer, bytes, issued_ns, idle_before, status);
      });
}

ChunkBytes KvReceiverImpl::MemoryFor(size_t bytes) const {
  if (device_ != nullptr) {
    if (std::optional<ChunkBytes> chunk = ChunkBytes::OnDevice(*device_, bytes)) return *chunk;
  }
  return ChunkBytes::OnHost(bytes);
}

void KvReceiverImpl::OnPulled(const ChunkOffer& offer, const ChunkBytes& bytes, int64_t issued_ns,
                              bool idle_before, const absl::Status& status) {
  const int64_t now = MonotonicNs();
  if (pulling_.erase(offer.id) > 0) scheduler_.Completed(offer.payload_bytes);
  if (status.ok()) CountPulled(offer, issued_ns, now, idle_before);
  Attempt attempt = Find(offer.header.attempt);
  if (attempt != nullptr && status.ok()) {
    const ChunkKey key = attempt->key(offer.header);
    ReceivedChunk& chunk = attempt->chunk(key);
    chunk.state = ReceivedChunk::State::kLanded;
    chunk.bytes = bytes;
    attempt->progress_ns = now;
    (key.stage == 0 ? anchor_queue_ : later_queue_).push_back({std::move(attempt), key});
    work_.notify_all();
  } else if (attempt != nullptr) {
    Fail(attempt, status, Tell::kSender);
  }
  Pump();
}

void KvReceiverImpl::CountPulled(const ChunkOffer& offer, int64_t issued_ns, int64_t now_ns,
                                 bool idle_before) {
  any_progress_ns_ = now_ns;
  ++stats_.chunks;
  stats_.bytes[PullClass(offer.header.stage)] += static_cast<int64_t>(offer.payload_bytes);
  window_.Arrived(offer.payload_bytes, issued_ns, now_ns, idle_before);
  if (options_.adapt_window) scheduler_.set_window_bytes(window_.bytes());
  if (window_.bytes_per_second() > 0) {
    scheduler_.set_ageing_bytes_per_second(window_.bytes_per_second() / 4);
  }
}

void KvReceiverImpl::OnAnnounce(uint64_t from, const Announce& announce) {
  if (const ControlMessage* verdict = ended_.Find(announce.attempt)) return Send(from, *verdict);
  Attempt attempt = Find(announce.attempt);
  if (attempt == nullptr) {
    early_.Announced(announce.attempt, from, MonotonicNs());
    work_.notify_all();
    return;
  }
  if (attempt->from == 0) TakeFrom(*attempt, from);
  if (attempt->from != from) {
    return Send(from, Abort{announce.attempt, absl::StatusCode::kFailedPrecondition,
                            "the attempt belongs to another sender"});
  }
  const PageGrid& grid = attempt->grid();
  if (announce.format != attempt->format() ||
      announce.first_token != static_cast<uint32_t>(grid.first_token) ||
      announce.num_tokens != static_cast<uint32_t>(grid.num_tokens)) {
    return Fail(attempt,
                absl::FailedPreconditionError(absl::StrCat(
                    "the sender hands over tokens ", announce.first_token, " .. ",
                    announce.num_tokens, " in format ", announce.format, ", want ",
                    grid.first_token, " .. ", grid.num_tokens, " in ", attempt->format())),
                Tell::kSender);
  }
  // Nothing is owed: the prefill still computes.
  if (announce.num_posted_chunks == static_cast<uint64_t>(attempt->num_landed_total())) {
    attempt->progress_ns = MonotonicNs();
  }
  Send(from, Renew{announce.attempt});
}

void KvReceiverImpl::OnAbort(uint64_t from, const Abort& abort) {
  Attempt attempt = Find(abort.attempt);
  const bool is_its_sender = attempt != nullptr && (attempt->from == from || attempt->from == 0);
  if (is_its_sender && !attempt->all_landed()) {
    Fail(attempt, absl::Status(abort.code, absl::StrCat("the sender: ", abort.message)),
         Tell::kNobody);
  }
  if (early_.IsFrom(abort.attempt, from)) {
    for (const ChunkOffer& offer : early_.Take(abort.attempt).offers) transport_.Drop(offer.id);
    ended_.Add(abort.attempt, abort);
  }
}

void KvReceiverImpl::Send(uint64_t to, const ControlMessage& message) {
  // What is lost here is sent again in answer to the sender's next announcement.
  if (std::optional<PeerId> peer = transport_.FindPeer(to)) {
    (void)transport_.SendControl(*peer, Serialize(message));
  }
}

}  // namespace lynx
