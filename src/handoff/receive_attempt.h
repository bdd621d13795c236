// SPDX-License-Identifier: Apache-2.0
// What one attempt must receive, and what of it is here. No threads: its KvReceiver guards it.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "codec/kv_page_codec.h"
#include "handoff/kv_receiver.h"
#include "handoff/page_grid.h"
#include "handoff/pull_scheduler.h"
#include "handoff/wire.h"

namespace lynx {

// One stage of one page of one layer.
struct ReceivedChunk {
  enum class State : uint8_t { kMissing, kOffered, kLanded };
  State state = State::kMissing;
  size_t size = 0;
  uint64_t checksum = 0;
  std::unique_ptr<std::byte[]> bytes;  // [size], from kLanded until the attempt needs it no more

  std::span<const std::byte> span() const { return {bytes.get(), size}; }
};

class ReceiveAttempt {
 public:
  ReceiveAttempt(const ReceiveJob& job, int num_layers, int num_stages, int64_t now_ns);

  const AttemptId& id() const { return job_.attempt; }
  const PageGrid& grid() const { return grid_; }
  int num_stages() const { return num_stages_; }
  int num_layers() const { return num_layers_; }
  int num_chunks_per_stage() const { return num_layers_ * grid_.num_pages(); }
  std::array<int64_t, kNumPullClasses> num_chunks_by_class() const;
  KvPage page(int layer, int page) const;
  ReceivedChunk& chunk(int stage, int layer, int page);

  // Whether this chunk can belong to the attempt: kDataLoss names the field that cannot.
  absl::Status CheckHeader(const ChunkHeader& header, size_t payload_bytes, uint64_t format,
                           const KvPageCodec& codec) const;

  // A chunk has arrived and its checksum is right (anchors: and it is decoded).
  void Landed(int stage, const ReceivedChunk& chunk);
  bool stage_landed(int stage) const { return num_landed_[stage] == num_chunks_per_stage(); }
  bool all_landed() const { return num_landed_total() == num_chunks_per_stage() * num_stages_; }
  int num_landed_total() const;
  const std::vector<int64_t>& stage_bytes() const { return stage_bytes_; }
  Delivered Receipt() const;

  uint64_t from = 0;            // epoch of its sender, 0 = not known yet
  int64_t progress_ns = 0;      // last time something arrived, or nothing was owed
  int num_stages_reported = 0;  // landed events sent
  int num_refined_pages = -1;   // of num_chunks_per_stage(); -1: Refine was not called
  // The codec thread is at work for it; the terminal event waits for that.
  bool in_codec = false;
  bool ended = false;
  ReceiveEvent terminal_event;  // valid with `ended`

 private:
  const ReceiveJob job_;
  const PageGrid grid_;
  const int num_layers_;
  const int num_stages_;
  std::vector<ReceivedChunk> chunks_;  // [stage][layer][page]
  std::vector<int> num_landed_;        // [stage]
  std::vector<int64_t> stage_bytes_;   // [stage]
  uint64_t checksum_ = 0;
};

}  // namespace lynx
