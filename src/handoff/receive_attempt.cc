// SPDX-License-Identifier: Apache-2.0
#include "handoff/receive_attempt.h"

#include <limits>
#include <numeric>
#include <utility>

namespace lynx {
namespace {

std::string Where(const ChunkHeader& h) {
  return absl::StrCat("chunk of layer ", h.layer, ", stage ", h.stage, ", page ", h.page,
                      ", heads ", h.first_head, " + ", h.num_heads);
}

std::string Text(const StageContents& c) {
  return absl::StrCat("kinds ", c.kinds, ", key planes ", c.planes[0].begin, "..", c.planes[0].end,
                      ", value planes ", c.planes[1].begin, "..", c.planes[1].end);
}

}  // namespace

ReceiveAttempt::ReceiveAttempt(const ReceiveJob& job, const KvLayout& layout, AttemptFormat format,
                               int64_t now_ns)
    : progress_ns(now_ns),
      job_(job),
      grid_{job.first_token, job.num_tokens},
      layout_(layout),
      format_(std::move(format)),
      num_landed_(num_stages(), 0),
      stage_bytes_(num_stages(), 0) {}

std::array<int64_t, kNumPullClasses> ReceiveAttempt::num_parts_by_class() const {
  const int64_t per_stage = int64_t{layout_.num_layers} * grid_.num_pages() * layout_.num_kv_heads;
  std::array<int64_t, kNumPullClasses> count = {};
  for (int s = 0; s < num_stages(); ++s) count[PullClass(s)] += per_stage;
  return count;
}

ReceivedChunk& ReceiveAttempt::chunk(const ChunkHeader& header) {
  if (heads_per_chunk_ == 0) {
    heads_per_chunk_ = header.num_heads;
    num_chunks_per_stage_ = layout_.num_layers * grid_.num_pages() * num_head_ranges();
    chunks_.resize(static_cast<size_t>(num_stages()) * num_chunks_per_stage_);
    pages_ = PageLevels(num_chunks_per_stage_, num_stages());
  }
  return chunk(key(header));
}

ChunkKey ReceiveAttempt::key(const ChunkHeader& h) const {
  return {h.stage, h.layer, static_cast<int>(h.page), h.first_head / heads_per_chunk_};
}

ReceivedChunk& ReceiveAttempt::chunk(const ChunkKey& key) {
  return chunks_[static_cast<size_t>(key.stage) * num_chunks_per_stage_ + page_index(key)];
}

int ReceiveAttempt::page_index(const ChunkKey& key) const {
  return (key.layer * grid_.num_pages() + key.page) * num_head_ranges() + key.head_range;
}

ChunkKey ReceiveAttempt::key(int stage, int index) const {
  const int page = index / num_head_ranges();
  return {stage, page / grid_.num_pages(), page % grid_.num_pages(), index % num_head_ranges()};
}

absl::Status ReceiveAttempt::CheckHeader(const ChunkHeader& h, size_t payload_bytes) const {
  if (h.format != format()) {
    return absl::FailedPreconditionError(absl::StrCat("the peer sends format ", h.format, ", want ",
                                                      format(),
                                                      " (codec, send plan or KV layout differ)"));
  }
  LYNX_RETURN_IF_ERROR(CheckPlace(h));
  LYNX_RETURN_IF_ERROR(CheckHeads(h));
  if (const StageContents want = codec().Contents(h.layer, h.stage); h.contents != want) {
    return absl::DataLossError(
        absl::StrCat(Where(h), ": ", Text(h.contents), ", want ", Text(want)));
  }
  const KvPage expected =
      grid_.page({h.stage, h.layer, static_cast<int>(h.page), 0}, h.num_heads, job_.block_table);
  if (h.first_block != static_cast<uint32_t>(expected.first_token / kBlockSize) ||
      h.num_blocks != static_cast<uint32_t>(expected.num_blocks()) ||
      h.num_tokens != static_cast<uint32_t>(expected.num_tokens)) {
    return absl::DataLossError(
        absl::StrCat(Where(h), ": ", h.num_tokens, " tokens in ", h.num_blocks,
                     " blocks from block ", h.first_block, ", want ", expected.num_tokens, " in ",
                     expected.num_blocks(), " from ", expected.first_token / kBlockSize));
  }
  const size_t max_bytes = codec().MaxStageBytes(expected, h.stage);
  if (h.bytes != payload_bytes || payload_bytes > max_bytes) {
    return absl::DataLossError(absl::StrCat(Where(h), ": ", h.bytes, " bytes announced, ",
                                            payload_bytes, " offered, at most ", max_bytes));
  }
  return absl::OkStatus();
}

absl::Status ReceiveAttempt::CheckPlace(const ChunkHeader& h) const {
  if (h.layer < layout_.num_layers && h.stage < num_stages() &&
      h.page < static_cast<uint32_t>(grid_.num_pages())) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(Where(h), ": the attempt has ", layout_.num_layers,
                                          " layers, ", num_stages(), " stages, ", grid_.num_pages(),
                                          " pages"));
}

absl::Status ReceiveAttempt::CheckHeads(const ChunkHeader& h) const {
  const int num_heads = layout_.num_kv_heads;
  if (h.num_heads == 0 || num_heads % h.num_heads != 0 || h.first_head >= num_heads ||
      h.first_head % h.num_heads != 0) {
    return absl::DataLossError(
        absl::StrCat(Where(h), ": not one of the equal parts of ", num_heads, " KV heads"));
  }
  if (heads_per_chunk_ != 0 && h.num_heads != heads_per_chunk_) {
    return absl::DataLossError(absl::StrCat(Where(h), ": earlier chunks of the attempt held ",
                                            heads_per_chunk_, " heads"));
  }
  return absl::OkStatus();
}

void ReceiveAttempt::Landed(const ChunkKey& key) {
  const ReceivedChunk& landed = chunk(key);
  ++num_landed_[key.stage];
  stage_bytes_[key.stage] += static_cast<int64_t>(landed.size);
  checksum_ += landed.checksum;
  pages_.Landed(page_index(key), key.stage);
}

void ReceiveAttempt::Decoded(const PageDecode& decode) {
  pages_.Decoded(decode);
  if (decode.num_stages < num_stages()) return;
  for (int s = 0; s < num_stages(); ++s) chunk(key(s, decode.page)).bytes = {};
}

int ReceiveAttempt::num_landed_total() const {
  return std::accumulate(num_landed_.begin(), num_landed_.end(), 0);
}

double ReceiveAttempt::BytesLeft() const {
  double left = 0;
  for (int s = 0; s < num_stages(); ++s) {
    if (num_landed_[s] == 0) return std::numeric_limits<double>::infinity();
    const int missing = num_chunks_per_stage_ - num_landed_[s];
    left += static_cast<double>(stage_bytes_[s]) / num_landed_[s] * missing;
  }
  return left;
}

Delivered ReceiveAttempt::Receipt() const {
  return {.attempt = id(),
          .num_chunks = static_cast<uint64_t>(num_landed_total()),
          .bytes = static_cast<uint64_t>(
              std::accumulate(stage_bytes_.begin(), stage_bytes_.end(), int64_t{0})),
          .checksum = checksum_};
}

}  // namespace lynx
