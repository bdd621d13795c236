// SPDX-License-Identifier: Apache-2.0
// What one attempt has to send, and what of it is posted. No threads: its KvSender guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "codec/chunk_bytes.h"
#include "codec/kv_page_codec.h"
#include "handoff/attempt_format.h"
#include "handoff/busy_clock.h"
#include "handoff/kv_sender.h"
#include "handoff/page_grid.h"

namespace lynx {

struct EncodedStage {
  ChunkBytes bytes;
  uint64_t checksum = 0;  // PayloadChecksum
};
// Also held by the transport while posted, which may be longer than the attempt lives.
using Payload = std::shared_ptr<const EncodedStage>;

struct SendAttempt {
  SendAttempt(const SendJob& job, const KvPoolView& pool, AttemptFormat attempt_format)
      : job(job),
        format(std::move(attempt_format)),
        grid{job.first_token, job.num_tokens},
        heads_per_chunk(pool.heads_per_shard()),
        num_chunks(static_cast<uint64_t>(pool.layout.num_layers) * format.pages->num_stages() *
                   grid.num_pages() * pool.num_shards()),
        num_queued_pages(pool.layout.num_layers, 0),
        num_pages_to_encode(pool.layout.num_layers * grid.num_pages() * pool.num_shards()) {}

  KvPage page(const ChunkKey& key) const {
    return grid.page(key, heads_per_chunk, job.block_table);
  }

  const SendJob job;
  const AttemptFormat format;
  const PageGrid grid;
  const int heads_per_chunk;  // every rank's heads travel in chunks of their own
  const uint64_t num_chunks;  // in all
  PeerId peer = 0;

  std::vector<int> num_queued_pages;  // [layer]: pages put into to_encode so far
  std::deque<ChunkKey> to_encode;     // computed pages, as their anchors' keys
  int num_pages_to_encode;            // of all layers and shards, computed or not, once each
  int64_t waiting_since_ns = 0;       // when the first layer was computed
  int64_t computed_ns = 0;            // when the last layer so far was
  // Encoded, not posted. A null payload was dropped for want of room and is encoded again.
  std::map<ChunkKey, Payload> later_chunks;
  int num_posted_later = 0;  // under way now
  bool encoding_again = false;

  uint64_t num_posted_chunks = 0;
  uint64_t num_pulled_chunks = 0;
  BusyClock pull_clock;  // while something is posted
  uint64_t posted_bytes = 0;
  uint64_t posted_checksum = 0;  // sum of the chunks'
  int64_t lease_end_ns = 0;
  int64_t next_announce_ns = 0;

  // The encoder reads its blocks; the terminal event waits for that.
  bool in_encoder = false;
  bool ended = false;
  SendEvent terminal_event;  // valid with `ended`
};

}  // namespace lynx
