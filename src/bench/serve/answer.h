// SPDX-License-Identifier: Apache-2.0
// One streamed answer of an OpenAI server, and when its tokens came.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/openai_stream.h"

namespace lynx {

// Times are of one monotonic clock.
struct AnswerRecord {
  int64_t due_ns = 0;             // the arrival process wanted it sent
  int64_t started_ns = 0;         // it was sent
  std::vector<int64_t> event_ns;  // arrivals of the events that carry tokens, ascending
  int64_t prompt_tokens = 0;      // as the server counts them, else as they were asked for
  int64_t output_tokens = 0;      // as the server counts them, else the events
  std::string text;
  int http_status = 0;  // 0: no response
  std::string error;    // "" for a complete answer

  bool ok() const { return error.empty(); }
};

// Fills a record from the bytes of a response's body. What it needs must be there: an event with
// choices, and an end ([DONE], or a finish_reason before the connection's end). What it does not
// know it skips. As in `vllm bench serve`, every event with a choice carries tokens, the last one
// with its finish_reason too; only one whose delta has a role and nothing else does not.
class AnswerReader {
 public:
  // The record must outlive the reader.
  explicit AnswerReader(AnswerRecord* record);
  AnswerReader(const AnswerReader&) = delete;

  // Bytes that arrived at now_ns. An error goes to the record.
  void Push(std::string_view bytes, int64_t now_ns);
  // The response is complete.
  void Finish();

 private:
  void TakeData(std::string_view data);
  void TakeChoice(const nlohmann::json& choice);
  void TakeUsage(const nlohmann::json& usage);

  AnswerRecord& record_;
  EventStream events_;
  int64_t now_ns_ = 0;
  bool is_done_ = false;     // [DONE]
  bool has_finish_ = false;  // a finish_reason
};

}  // namespace lynx
