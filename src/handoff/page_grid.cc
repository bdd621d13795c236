// SPDX-License-Identifier: Apache-2.0
#include "handoff/page_grid.h"

namespace lynx {

KvPage PageGrid::page(const ChunkKey& key, int heads_per_chunk,
                      const std::vector<BlockId>& block_table) const {
  const int first = page_first_token(key.page);
  return {.layer = key.layer,
          .first_token = first,
          .num_tokens = page_num_tokens(key.page),
          .blocks = block_table.data() + first / kBlockSize,
          .num_sequence_tokens = num_tokens,
          .first_head = key.head_range * heads_per_chunk,
          .num_heads = heads_per_chunk};
}

absl::Status CheckTokenRange(const PageGrid& grid, const std::vector<BlockId>& block_table,
                             int num_blocks) {
  if (grid.first_token < 0 || grid.first_token > grid.num_tokens ||
      grid.first_token % kBlockSize != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hand-off of tokens ", grid.first_token, " .. ", grid.num_tokens,
                     ": the first must be a multiple of ", kBlockSize, " and not past the last"));
  }
  const size_t need = (static_cast<size_t>(grid.num_tokens) + kBlockSize - 1) / kBlockSize;
  if (block_table.size() < need) {
    return absl::InvalidArgumentError(absl::StrCat("hand-off of ", grid.num_tokens, " tokens with ",
                                                   block_table.size(), " blocks, needs ", need));
  }
  for (size_t i = grid.first_token / kBlockSize; i < need; ++i) {
    if (block_table[i] < 0 || block_table[i] >= num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("hand-off: block ", block_table[i], " is not in a pool of ", num_blocks));
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx
