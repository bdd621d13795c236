// SPDX-License-Identifier: Apache-2.0
#include "handoff/receive_attempt.h"

#include <numeric>

namespace lynx {

ReceiveAttempt::ReceiveAttempt(const ReceiveJob& job, int num_layers, int num_stages,
                               int64_t now_ns)
    : progress_ns(now_ns),
      job_(job),
      grid_{job.first_token, job.num_tokens},
      num_layers_(num_layers),
      num_stages_(num_stages),
      chunks_(static_cast<size_t>(num_stages) * num_layers * grid_.num_pages()),
      num_landed_(num_stages, 0),
      stage_bytes_(num_stages, 0) {}

std::array<int64_t, kNumPullClasses> ReceiveAttempt::num_chunks_by_class() const {
  std::array<int64_t, kNumPullClasses> count = {};
  for (int s = 0; s < num_stages_; ++s) count[PullClass(s)] += num_chunks_per_stage();
  return count;
}

KvPage ReceiveAttempt::page(int layer, int page) const {
  const int first = grid_.page_first_token(page);
  return {.layer = layer,
          .first_token = first,
          .num_tokens = grid_.page_num_tokens(page),
          .blocks = job_.block_table.data() + first / kBlockSize,
          .num_sequence_tokens = grid_.num_tokens};
}

ReceivedChunk& ReceiveAttempt::chunk(int stage, int layer, int page) {
  return chunks_[(static_cast<size_t>(stage) * num_layers_ + layer) * grid_.num_pages() + page];
}

absl::Status ReceiveAttempt::CheckHeader(const ChunkHeader& h, size_t payload_bytes,
                                         uint64_t format, const KvPageCodec& codec) const {
  if (h.format != format) {
    return absl::FailedPreconditionError(absl::StrCat("the peer sends format ", h.format, ", want ",
                                                      format,
                                                      " (codec, send plan or KV layout differ)"));
  }
  const std::string where =
      absl::StrCat("chunk of layer ", h.layer, ", stage ", h.stage, ", page ", h.page);
  if (h.layer >= num_layers_ || h.stage >= num_stages_ ||
      h.page >= static_cast<uint32_t>(grid_.num_pages())) {
    return absl::DataLossError(absl::StrCat(where, ": the attempt has ", num_layers_, " layers, ",
                                            num_stages_, " stages, ", grid_.num_pages(), " pages"));
  }
  const KvPage expected = page(h.layer, static_cast<int>(h.page));
  if (h.first_token != static_cast<uint32_t>(expected.first_token) ||
      h.num_tokens != static_cast<uint32_t>(expected.num_tokens)) {
    return absl::DataLossError(absl::StrCat(where, ": ", h.num_tokens, " tokens from ",
                                            h.first_token, ", want ", expected.num_tokens, " from ",
                                            expected.first_token));
  }
  const size_t max_bytes = codec.MaxStageBytes(expected, h.stage);
  if (h.bytes != payload_bytes || payload_bytes > max_bytes) {
    return absl::DataLossError(absl::StrCat(where, ": ", h.bytes, " bytes announced, ",
                                            payload_bytes, " offered, at most ", max_bytes));
  }
  return absl::OkStatus();
}

void ReceiveAttempt::Landed(int stage, const ReceivedChunk& chunk) {
  ++num_landed_[stage];
  stage_bytes_[stage] += static_cast<int64_t>(chunk.size);
  checksum_ += chunk.checksum;
}

int ReceiveAttempt::num_landed_total() const {
  return std::accumulate(num_landed_.begin(), num_landed_.end(), 0);
}

Delivered ReceiveAttempt::Receipt() const {
  return {.attempt = id(),
          .num_chunks = static_cast<uint64_t>(num_landed_total()),
          .bytes = static_cast<uint64_t>(
              std::accumulate(stage_bytes_.begin(), stage_bytes_.end(), int64_t{0})),
          .checksum = checksum_};
}

}  // namespace lynx
