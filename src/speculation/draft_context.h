// SPDX-License-Identifier: Apache-2.0
// Which blocks of its own context a sequence drafts on: few, so that a draft row costs hardly any
// attention, and those that are likely to decide the next tokens.
//
//   the first block   attention sinks
//   recent blocks     what the text is about just now
//   found blocks      where the last tokens occurred before, and what followed them: attention
//                     copies from there. Longer matches first, of equal ones the latest
//
// Drafts only: what follows from it is verified on the whole context.
#pragma once

#include <span>
#include <vector>

#include "lynx/types.h"

namespace lynx {

// Of a sequence's blocks the listed ones, in order, and all from `recent` on.
struct DraftContext {
  std::vector<int> blocks;  // ascending, below `recent`
  int recent = 0;
  int num_skipped() const { return recent - static_cast<int>(blocks.size()); }
};

struct DraftContextOptions {
  int num_first_blocks = 1;
  int num_recent_blocks = 16;  // before the block that the next token comes into
  int max_found_blocks = 4;
  // That a draft reads at most.
  int max_tokens() const {
    return (num_first_blocks + num_recent_blocks + max_found_blocks + 1) * kBlockSize;
  }
};

DraftContext ChooseDraftContext(std::span<const TokenId> tokens,
                                const DraftContextOptions& options);

}  // namespace lynx
