// SPDX-License-Identifier: Apache-2.0
// Sends prompts to a server as they become due, and takes the times of what comes back.
#pragma once

#include <optional>
#include <span>

#include "app/http_client.h"
#include "bench/serve/answer.h"
#include "bench/serve/prompts.h"

namespace lynx {

struct ServeTarget {
  std::string name;     // in reports
  HttpRequest request;  // without a body
  std::string model;    // "" = the server's
  bool is_chat = false;
  bool ignore_eos = false;
  std::optional<double> temperature;  // none: the server's default
  nlohmann::json extra_body;          // members that every request gets as well; null: none
};

// The body of a streaming request for the prompt.
std::string RequestBody(const ServeTarget& target, const ServePrompt& prompt);

struct LoadPlan {
  std::span<const ServePrompt> prompts;
  std::vector<int64_t> due_ns;  // of each prompt, from the start, ascending
  int max_concurrency = 0;      // requests under way at one time; 0: no limit
  int64_t max_duration_ns = 0;  // nothing is sent after this; 0: no limit
  bool shows_progress = false;  // on standard error, every 10 s
};

struct LoadResult {
  std::vector<AnswerRecord> answers;  // of the prompts that were sent, in their order
  int64_t duration_ns = 0;
};

// Runs the plan to its end, on this thread alone. Requests are sent in order, each when it is due
// and there is room; connections are kept open and used again. The clock is MonotonicNs, read
// right after each read of a socket.
LoadResult RunLoad(const ServeTarget& target, const LoadPlan& plan);

}  // namespace lynx
