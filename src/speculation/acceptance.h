// SPDX-License-Identifier: Apache-2.0
// Accepting drafts: by equality with the target's own choice.
#pragma once

#include <span>

#include "lynx/types.h"

namespace lynx {

struct Acceptance {
  int num_accepted = 0;  // leading drafts that were right
  int num_chosen = 0;    // final tokens: the accepted ones, and the target's own after them
};

// Verification rows are the last final token followed by drafts; row i says what follows draft
// i - 1. choose(i) returns the target's choice from row i and is called for i = 0, 1, … until a
// choice differs from draft i or the rows end (`num_rows`: at most drafts.size() + 1; fewer when a
// long run of drafts is verified in pieces), or it says that the sequence has ended.
struct TargetChoice {
  TokenId token = 0;
  bool ends_sequence = false;
};

template <typename Choose>
Acceptance AcceptDrafts(std::span<const TokenId> drafts, int num_rows, Choose&& choose) {
  Acceptance result;
  for (int row = 0; row < num_rows; ++row) {
    const TargetChoice target = choose(row);
    ++result.num_chosen;
    const bool equal = row < static_cast<int>(drafts.size()) && target.token == drafts[row];
    if (equal) ++result.num_accepted;
    if (!equal || target.ends_sequence) break;
  }
  return result;
}

}  // namespace lynx
