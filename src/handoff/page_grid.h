// SPDX-License-Identifier: Apache-2.0
// How the KV of an attempt falls into chunks: pages of up to 256 tokens, counted from its first
// token, of every layer, each cut into equal runs of KV heads and into stages.
#pragma once

#include <algorithm>
#include <compare>
#include <vector>

#include "codec/kv_page_codec.h"
#include "lynx/codec.h"

namespace lynx {

// Chunks in the order they are posted in.
struct ChunkKey {
  int stage = 0;
  int layer = 0;
  int page = 0;
  int head_range = 0;  // which run of heads
  auto operator<=>(const ChunkKey&) const = default;
};

struct PageGrid {
  int first_token = 0;
  int num_tokens = 0;  // of the whole prompt

  int num_pages() const { return (num_tokens - first_token + kPageTokens - 1) / kPageTokens; }
  int page_first_token(int page) const { return first_token + page * kPageTokens; }
  int page_num_tokens(int page) const {
    return std::min(kPageTokens, num_tokens - page_first_token(page));
  }
  // Pages that lie wholly in [0, num_computed). The last one is complete only with the last token.
  int num_complete_pages(int num_computed) const {
    if (num_computed >= num_tokens) return num_pages();
    return std::max(0, num_computed - first_token) / kPageTokens;
  }
  // The page of a chunk. block_table: of all tokens; the result refers to it.
  KvPage page(const ChunkKey& key, int heads_per_chunk,
              const std::vector<BlockId>& block_table) const;
};

// kInvalidArgument unless 0 <= first_token <= num_tokens, first_token is a multiple of the block
// size, and the block table covers the tokens with blocks of the pool.
absl::Status CheckTokenRange(const PageGrid& grid, const std::vector<BlockId>& block_table,
                             int num_blocks);

}  // namespace lynx
