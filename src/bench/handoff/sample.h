// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "lynx/status.h"
#include "lynx/types.h"

namespace lynx {

// One answer and what its timeline says. Times in seconds.
struct HandoffSample {
  std::vector<TokenId> tokens;
  std::string text;
  double ttft_s = 0;   // token 1: since the decode daemon received the request
  double ttst_s = 0;   // token 2: the same
  double stall_s = 0;  // longest gap between final tokens
  // When the k-th token after token 1 was there, since token 1; [0] is 0. Verified: for good.
  // Provisional: it and all before it had been drafted, and were accepted later.
  std::vector<double> verified_s, provisional_s;
  std::array<int64_t, 3> bytes = {};  // anchor, residual, exact
  int drafted = 0, accepted = 0, verify_rounds = 0, verified_by_source = 0;
  int handoffs = 0;    // attempts; 0: prefilled by the decode daemon
  std::string verify;  // what it came to
  std::string anchor;  // the same; "" when the daemon does not say
  // What of the hand-off lay after token 1: until the anchor was there, all bytes were there, they
  // were in place, and the drafts were judged against them. 0 for what came before.
  double anchor_s = 0, landed_s = 0, refined_s = 0, judged_s = 0;
};

struct HandoffPrompt {
  std::vector<TokenId> tokens;
  std::string needle;  // what the answer should contain; "": nothing was asked
};

// Asks the gateway at 127.0.0.1 greedily for exactly max_tokens.
absl::StatusOr<HandoffSample> MeasureHandoff(int port, const HandoffPrompt& prompt, int max_tokens,
                                             const std::string& verify);

// The answer of /v1/completions with lynx.timeline. kInternal names what is missing.
absl::StatusOr<HandoffSample> ParseHandoffAnswer(const std::string& body);

}  // namespace lynx
