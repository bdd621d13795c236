// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "lynx/types.h"

namespace lynx {

// Keeps a prefill daemon at work: two clients that send prompts, one after the other, and want one
// token of each, from construction to destruction (which waits for the last two). The hand-offs of
// these prompts begin as any others and end with their token 1.
class HandoffLoad {
 public:
  // Gateway at 127.0.0.1; each prompt begins with another number of the tokens left out.
  HandoffLoad(int port, std::vector<TokenId> tokens);
  ~HandoffLoad();
  HandoffLoad(const HandoffLoad&) = delete;

 private:
  static constexpr int kNumClients = 2;
  void Loop(int client);

  const int port_;
  const std::vector<TokenId> tokens_;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> clients_;
};

}  // namespace lynx
