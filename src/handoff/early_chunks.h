// SPDX-License-Identifier: Apache-2.0
// Offered chunks whose attempt has not begun here: its Begin may still be on its way. Bounded in
// number; what waits too long is given back. No threads: its KvReceiver guards it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "handoff/wire.h"
#include "lynx/transport.h"

namespace lynx {

struct ChunkOffer {
  OfferId id = 0;
  uint64_t from = 0;  // epoch of the sender
  ChunkHeader header;
  size_t payload_bytes = 0;
};

class EarlyChunks {
 public:
  struct Waiting {
    uint64_t from = 0;
    int64_t since_ns = 0;
    std::vector<ChunkOffer> offers;
  };

  explicit EarlyChunks(int max_chunks) : max_chunks_(max_chunks) {}

  bool empty() const { return attempts_.empty(); }

  // Its sender has announced the attempt. Ignored when too many wait.
  void Announced(const AttemptId& attempt, uint64_t from, int64_t now_ns) {
    if (static_cast<int>(attempts_.size()) >= max_chunks_) return;
    attempts_.try_emplace(attempt, Waiting{from, now_ns, {}});
  }
  // False when too many wait.
  bool Add(const ChunkOffer& offer, int64_t now_ns) {
    if (num_chunks_ >= max_chunks_) return false;
    const auto [it, added] =
        attempts_.try_emplace(offer.header.attempt, Waiting{offer.from, now_ns, {}});
    it->second.offers.push_back(offer);
    ++num_chunks_;
    return true;
  }
  // What waits for this attempt; it is forgotten here.
  Waiting Take(const AttemptId& attempt) {
    auto node = attempts_.extract(attempt);
    if (node.empty()) return {};
    num_chunks_ -= static_cast<int>(node.mapped().offers.size());
    return std::move(node.mapped());
  }
  bool IsFrom(const AttemptId& attempt, uint64_t from) const {
    const auto it = attempts_.find(attempt);
    return it != attempts_.end() && it->second.from == from;
  }
  void ForgetSender(uint64_t from) {
    std::erase_if(attempts_, [&](const auto& entry) {
      if (entry.second.from != from) return false;
      num_chunks_ -= static_cast<int>(entry.second.offers.size());
      return true;
    });
  }
  // Attempts that have waited since before then.
  std::vector<AttemptId> Before(int64_t then_ns) const {
    std::vector<AttemptId> late;
    for (const auto& [id, waiting] : attempts_) {
      if (waiting.since_ns < then_ns) late.push_back(id);
    }
    return late;
  }

 private:
  const int max_chunks_;
  std::map<AttemptId, Waiting> attempts_;
  int num_chunks_ = 0;
};

}  // namespace lynx
