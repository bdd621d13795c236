// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "lynx/types.h"

namespace lynx {

struct Choice {
  TokenId token = 0;
  // By how much the logit of the runner-up would have to rise to win, in logits: how robust the
  // choice is against an inexact cache. Infinite when nothing else was possible.
  float margin = 0;
};

// The token after a row, chosen where the logits are: nothing but temperature and noise has a say
// in it, so it is what sampling/sampler.h chooses without filters.
struct RowChoice {
  bool wanted = false;    // false: the row's logits are wanted instead, and choice stays as it is
  float temperature = 0;  // below 1e-5: greedy
  uint64_t seed = 0;
  int64_t position = 0;  // of the token that is chosen
  Choice choice;         // the answer
};

}  // namespace lynx
