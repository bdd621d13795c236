// SPDX-License-Identifier: Apache-2.0
// `lynx bench incast`: several prefill sides hand over to one decode side.
#pragma once

#include <string>
#include <vector>

#include "lynx/status.h"

namespace lynx {

struct BenchIncastOptions {
  std::string link = "1gbit";  // of the receiver and of each sender; none: loopback, as it is
  std::string rtt = "0.2ms";
  double load = 0.8;  // of the receiver's link
  std::vector<int> senders = {1, 2, 4};
  std::vector<std::string> policies = {"lynx", "sender_strict", "two_streams", "fifo"};
  std::vector<int> seeds = {1, 2, 3};
  int requests = 240;  // of a run
  std::vector<int> prompt_tokens = {256, 512, 1024, 1536};
  std::string codec = "planes";
  int layers = 30, kv_heads = 3, head_dim = 64;  // SmolLM2-135M
  std::string json;                              // file to append to
};
absl::Status RunBenchIncast(const BenchIncastOptions& options);

}  // namespace lynx
