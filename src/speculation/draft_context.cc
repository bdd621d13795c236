// SPDX-License-Identifier: Apache-2.0
#include "speculation/draft_context.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace lynx {
namespace {

constexpr int kLeastMatch = 2, kLongestMatch = 4;  // tokens
constexpr int kFollowing = 8;                      // tokens that drafts may copy

// How many of the tokens up to `end` (inclusive) are those at the end of the text, if that is
// kLeastMatch or more.
int MatchLength(std::span<const TokenId> tokens, int end) {
  int length = 0;
  while (length < kLongestMatch && length <= end &&
         tokens[end - length] == tokens[tokens.size() - 1 - length]) {
    ++length;
  }
  return length;
}

// Ends of earlier occurrences of the last tokens, the best first.
std::vector<int> FindOccurrences(std::span<const TokenId> tokens, int end, int max_number) {
  std::array<std::vector<int>, kLongestMatch + 1> by_length;
  for (int i = end - 1; i >= kLeastMatch - 1; --i) {
    const int length = MatchLength(tokens, i);
    if (length < kLeastMatch) continue;
    if (static_cast<int>(by_length[length].size()) < max_number) by_length[length].push_back(i);
  }
  std::vector<int> found;
  for (int length = kLongestMatch; length >= kLeastMatch; --length) {
    found.insert(found.end(), by_length[length].begin(), by_length[length].end());
  }
  return found;
}

}  // namespace

DraftContext ChooseDraftContext(std::span<const TokenId> tokens,
                                const DraftContextOptions& options) {
  const int last = (static_cast<int>(tokens.size()) - 1) / kBlockSize;
  DraftContext context;
  context.recent = std::max(0, last - options.num_recent_blocks);
  context.blocks.resize(std::min(options.num_first_blocks, context.recent));
  std::iota(context.blocks.begin(), context.blocks.end(), 0);
  const size_t room = context.blocks.size() + options.max_found_blocks;
  for (int end : FindOccurrences(tokens, context.recent * kBlockSize, options.max_found_blocks)) {
    for (int block : {end / kBlockSize, (end + kFollowing) / kBlockSize}) {
      if (block >= context.recent || context.blocks.size() >= room) continue;
      const auto at = std::lower_bound(context.blocks.begin(), context.blocks.end(), block);
      if (at == context.blocks.end() || *at != block) context.blocks.insert(at, block);
    }
  }
  return context;
}

}  // namespace lynx
