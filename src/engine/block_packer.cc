// SPDX-License-Identifier: Apache-2.0
#include "engine/block_packer.h"

#include <algorithm>
#include <cstring>

#include "lynx/backend.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr int kFirstMoves = 4;  // while nothing is known of their time
constexpr double kLossyBytesPerNs = 1.0;

}  // namespace

absl::StatusOr<std::unique_ptr<BlockPacker>> BlockPacker::Create(
    const Backend& backend, const KvPoolView& pool, int num_planes,
    std::function<int64_t()> clock_ns) {
  if (!backend.is_host()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.resident: the KV of back-end ", backend.name(),
                     " is not in host memory; only bf16 is possible there"));
  }
  std::unique_ptr<BlockPacker> packer(
      new BlockPacker(pool, num_planes == kNumPlanes, std::move(clock_ns)));
  LYNX_ASSIGN_OR_RETURN(packer->codec_, MakeCodec("planes", backend));
  const int num_tensors = pool.layout.num_layers * 2;
  const SendPlan one_stage{.plane_end = {std::vector<int>(num_tensors, num_planes)}};
  LYNX_ASSIGN_OR_RETURN(packer->pages_,
                        KvPageCodec::Create(*packer->codec_, one_stage, pool.layout));
  return packer;
}

// No token of it counts as one of the most recent.
KvPage BlockPacker::Page(int layer, bool is_first, const BlockId& block) const {
  const int first_token = is_first ? 0 : kBlockSize;
  return {.layer = layer,
          .first_token = first_token,
          .num_tokens = kBlockSize,
          .blocks = &block,
          .num_sequence_tokens = first_token + kBlockSize + kNumRecentTokens,
          .first_head = 0,
          .num_heads = pool_.layout.num_kv_heads};
}

void BlockPacker::Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) {
  const int64_t begin_ns = clock_ns_();
  const int num_layers = pool_.layout.num_layers;
  bytes->resize(num_layers * sizeof(uint32_t));
  for (int layer = 0; layer < num_layers; ++layer) {
    pages_->EncodePage(pool_, Page(layer, is_first, block), stage_);
    const auto length = static_cast<uint32_t>(stage_[0].size());
    std::memcpy(bytes->data() + layer * sizeof(length), &length, sizeof(length));
    bytes->insert(bytes->end(), stage_[0].begin(), stage_[0].end());
  }
  Observe(begin_ns, &encode_ns_);
}

void BlockPacker::Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) {
  const int64_t begin_ns = clock_ns_();
  const int num_layers = pool_.layout.num_layers;
  auto rest = bytes.subspan(num_layers * sizeof(uint32_t));
  for (int layer = 0; layer < num_layers; ++layer) {
    uint32_t length;
    std::memcpy(&length, bytes.data() + layer * sizeof(length), sizeof(length));
    const MemoryView stage = rest.first(length);
    LYNX_CHECK(pages_->DecodePage(Page(layer, is_first, block), {&stage, 1}, pool_).ok());
    rest = rest.subspan(length);
  }
  Observe(begin_ns, &decode_ns_);
}

void BlockPacker::Observe(int64_t begin_ns, int64_t* total_ns) {
  const int64_t ns = clock_ns_() - begin_ns;
  *total_ns += ns;
  move_ns_.Observe(static_cast<double>(ns));
}

int BlockPacker::MovesWithin(int64_t ns) const {
  if (lossless_ && !move_ns_.known()) return kFirstMoves;
  const double move_ns =
      lossless_ ? move_ns_.value() : pool_.layout.block_bytes() / kLossyBytesPerNs;
  const double moves = static_cast<double>(ns) / std::max(1.0, move_ns);
  return static_cast<int>(std::clamp(moves, 1.0, 1e6));
}

}  // namespace lynx
