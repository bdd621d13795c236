// SPDX-License-Identifier: Apache-2.0
// The engine applies this rule on the host: it wants every row's choice and margin anyhow (survival
// is learnt from them, stops and limits are its own), they come back in one copy of 8 bytes a row,
// and the host has them before it can make the next batch. On the device it serves a step that
// queues the next one by itself.
#pragma once

#include <cuda_runtime.h>

#include "lynx/choice.h"

namespace lynx::cuda {

// One verification: rows of the batch, of which row i says what follows draft i - 1.
struct VerifyGroup {
  int row_begin = 0;    // its first choice
  int num_rows = 0;     // at most num_drafts + 1
  int draft_begin = 0;  // its first draft
  int num_drafts = 0;
  int stop_begin = 0;  // its first stop token: one of them ends the sequence
  int num_stop_tokens = 0;
};

// The Acceptance of speculation/acceptance.h.
struct GroupAcceptance {
  int num_accepted = 0;
  int num_chosen = 0;
  TokenId next_token = -1;  // the last chosen one; -1: none
};

// Device pointers.
struct AcceptParams {
  const VerifyGroup* groups = nullptr;
  int num_groups = 0;
  const TokenId* drafts = nullptr;
  const TokenId* stop_tokens = nullptr;
  const Choice* choices = nullptr;
  GroupAcceptance* results = nullptr;  // [num_groups]
};

void Accept(cudaStream_t stream, const AcceptParams& params);

}  // namespace lynx::cuda
