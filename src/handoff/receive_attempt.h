// SPDX-License-Identifier: Apache-2.0
// What one attempt must receive, and what of it is here. No threads: its KvReceiver guards it.
//
// Into how many runs of heads a page is cut is the sender's choice (its tensor parallelism). The
// attempt learns it from the first chunk; nothing of it can have landed before.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codec/kv_page_codec.h"
#include "handoff/attempt_format.h"
#include "handoff/kv_receiver.h"
#include "handoff/page_grid.h"
#include "handoff/page_levels.h"
#include "handoff/pull_scheduler.h"
#include "handoff/wire.h"

namespace lynx {

struct ReceivedChunk {
  enum class State : uint8_t { kMissing, kOffered, kLanded };
  State state = State::kMissing;
  size_t size = 0;
  uint64_t checksum = 0;
  ChunkBytes bytes;  // [size], from kLanded until its page holds the target

  MemoryView view() const { return bytes.view(); }
};

class ReceiveAttempt {
 public:
  // layout: of the receiver's pool, all heads.
  ReceiveAttempt(const ReceiveJob& job, const KvLayout& layout, AttemptFormat format,
                 int64_t now_ns);

  const AttemptId& id() const { return job_.attempt; }
  const PageGrid& grid() const { return grid_; }
  const KvPageCodec& codec() const { return *format_.pages; }
  uint64_t format() const { return format_.hash; }
  int num_stages() const { return format_.pages->num_stages(); }
  // Heads of pages of layers, over all stages of a class: what the scheduler counts in.
  std::array<int64_t, kNumPullClasses> num_parts_by_class() const;

  // Whether this chunk can belong to the attempt: kDataLoss names the field that cannot.
  absl::Status CheckHeader(const ChunkHeader& header, size_t payload_bytes) const;
  // The chunk of a checked header, which settles how pages are cut if it is the first.
  ReceivedChunk& chunk(const ChunkHeader& header);

  // Below: once a chunk has come.
  ChunkKey key(const ChunkHeader& header) const;
  ReceivedChunk& chunk(const ChunkKey& key);
  KvPage page(const ChunkKey& key) const {
    return grid_.page(key, heads_per_chunk_, job_.block_table);
  }
  int num_chunks_per_stage() const { return num_chunks_per_stage_; }
  ChunkKey key(int stage, int index) const;  // index < num_chunks_per_stage()

  int page_index(const ChunkKey& key) const;  // the index that gives key back

  // A chunk has arrived and its checksum is right.
  void Landed(const ChunkKey& key);
  // The page has been decoded. With all stages, its chunks' bytes are given up.
  void Decoded(const PageDecode& decode);
  PageLevels& pages() { return pages_; }  // by index
  const PageLevels& pages() const { return pages_; }
  bool stage_landed(int stage) const {
    return heads_per_chunk_ > 0 && num_landed_[stage] == num_chunks_per_stage_;
  }
  bool all_landed() const {
    return heads_per_chunk_ > 0 && num_landed_total() == num_chunks_per_stage_ * num_stages();
  }
  int num_landed_total() const;
  // About as many are missing, as the chunks that are here tell; infinite while they do not.
  double BytesLeft() const;
  const std::vector<int64_t>& stage_bytes() const { return stage_bytes_; }
  Delivered Receipt() const;

  uint64_t from = 0;            // epoch of its sender, 0 = not known yet
  std::optional<PeerId> peer;   // the connection to it that the attempt began on
  int64_t progress_ns = 0;      // last time something arrived, or nothing was owed
  int num_stages_reported = 0;  // landed events sent
  bool being_read = false;      // by the engine: its pages are left alone
  bool asked_to_read = false;   // and was told to wait for the codec thread
  int64_t ask_again_ns = 0;     // and was told to wait for the target, until then; 0: was not
  // What the codec thread does for it. The terminal event waits for the end of that.
  enum class InCodec : uint8_t { kNothing, kCheck, kDecode } in_codec = InCodec::kNothing;
  bool in_anchor_queue = false, in_refine_queue = false;  // of the receiver
  bool ended = false;
  ReceiveEvent terminal_event;  // valid with `ended`

 private:
  absl::Status CheckPlace(const ChunkHeader& header) const;
  absl::Status CheckHeads(const ChunkHeader& header) const;
  int num_head_ranges() const { return layout_.num_kv_heads / heads_per_chunk_; }

  const ReceiveJob job_;
  const PageGrid grid_;
  const KvLayout layout_;
  const AttemptFormat format_;
  int heads_per_chunk_ = 0;            // 0 = not known yet
  int num_chunks_per_stage_ = 0;       // with heads_per_chunk_
  std::vector<ReceivedChunk> chunks_;  // [stage][layer][page][head range], with heads_per_chunk_
  PageLevels pages_;                   // [layer][page][head range], with heads_per_chunk_
  std::vector<int> num_landed_;        // [stage]
  std::vector<int64_t> stage_bytes_;   // [stage]
  uint64_t checksum_ = 0;
};

}  // namespace lynx
