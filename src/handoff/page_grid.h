// SPDX-License-Identifier: Apache-2.0
// How the tokens of an attempt fall into pages: up to 256 tokens each, counted from its first
// token.
#pragma once

#include <algorithm>

#include "lynx/codec.h"

namespace lynx {

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
};

// kInvalidArgument unless 0 <= first_token <= num_tokens, first_token is a multiple of the block
// size, and the block table covers the tokens with blocks of the pool.
absl::Status CheckTokenRange(const PageGrid& grid, const std::vector<BlockId>& block_table,
                             int num_blocks);

}  // namespace lynx
