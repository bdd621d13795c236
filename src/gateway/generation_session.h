// SPDX-License-Identifier: Apache-2.0
// One HTTP request that generates, from its plan to its last byte.
//
//  1. Start: the first choices go to the Generator (the others follow as these finish, also those
//     that find an engine's queue full while others run).
//  2. Engine outputs arrive from other threads in a mailbox; each wakes the connection.
//  3. Advance: the connection takes what has arrived as bytes to write. Until the first output an
//     error is still a plain HTTP answer; afterwards it is an event in the stream.
//  4. A choice finishes. When that is by a stop string, the engine is asked to stop; for the sake
//     of its timeline, if the client wants one, its last output is waited for, not too long.
//  5. Every choice is complete: usage, [DONE] or the whole body.
//  Destroying the session at any point cancels what still runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/answer_json.h"
#include "gateway/gateway_metrics.h"
#include "gateway/generation_plan.h"
#include "gateway/http_message.h"
#include "lynx/generator.h"

namespace lynx {

struct SessionContext {
  Generator& generator;
  const Tokenizer& tokenizer;
  GatewayMetrics& metrics;
  std::chrono::nanoseconds settle_timeout = GatewayLimits().settle_timeout;
  std::chrono::nanoseconds request_timeout{0};  // 0: none
};

// Used by one thread at a time; only the wakeup is called from others.
class GenerationSession {
 public:
  struct Step {
    std::optional<HttpResponse> response;  // the whole answer: nothing was streamed before
    std::string sse;                       // bytes of a stream, maybe none
    bool done = false;
    bool failed = false;  // done, with an error behind the first bytes: the connection ends, too
  };

  // `wakeup` must not block. It is not called any more once the session is gone.
  GenerationSession(GenerationPlan plan, const SessionContext& context,
                    std::function<void()> wakeup);
  ~GenerationSession();

  Step Advance();
  // When to Advance even if nothing wakes the session (monotonic clock); empty: never.
  std::optional<int64_t> wait_until_ns() const {
    return settle_by_ns_ ? settle_by_ns_ : end_by_ns_;
  }
  // The bytes of the last step have left.
  void Written(int64_t now_ns);
  // Ends it with an error, as if an engine had reported it.
  Step Abort(const ApiError& error);

  bool is_stream() const { return plan_.request.stream; }

 private:
  // Where the engines' threads leave outputs. May outlive the session in a sink; closed by then.
  class Mailbox {
   public:
    explicit Mailbox(std::function<void()> wakeup) : wakeup_(std::move(wakeup)) {}
    void Put(int choice, EngineOutput output);
    std::vector<std::pair<int, EngineOutput>> TakeAll();
    void Close();

   private:
    std::mutex mutex_;
    std::function<void()> wakeup_;  // null: closed
    std::vector<std::pair<int, EngineOutput>> outputs_;
  };

  struct Choice {
    Choice(const OpenAiRequest& request, const Tokenizer& tokenizer, size_t first_offset,
           bool continues_text)
        : stream(request, tokenizer, first_offset, continues_text) {}
    std::unique_ptr<Generation> generation;
    ChoiceStream stream;
    bool has_begun = false;  // its first output is here
    bool has_shown_prompt_ids = false;
    bool is_settled = false;   // finished, and no more is awaited of its engine
    bool is_recorded = false;  // in the metrics
    std::string text;          // not streamed: all of it
    std::vector<PlacedToken> tokens;
    size_t num_echoed = 0;  // see ChoicePart
    std::vector<std::optional<TokenOutput>> prompt_logprobs;
    int num_cached_tokens = 0;
    int max_tokens = 0;
    int64_t first_token_ns = 0, last_event_ns = 0, finished_ns = 0;
    Timeline timeline;
  };

  std::unique_ptr<Choice> NewChoice(int index) const;
  void StartMore();
  void Start(int index);
  bool MayWait(int index, const absl::Status& refusal) const;
  void Postpone(int index);
  bool IsOverdue() const;
  void Absorb(int index, EngineOutput output, std::string* sse);
  void Begin(int index, ChoicePart* part);
  void Emit(int index, ChoicePart part, std::string* sse);
  void BeginRole(int index, std::string* sse);
  void FinishChoice(int index, bool engine_has_finished);
  void Settle(int index);
  void SettleAll();
  void Record(int index, FinishReason reason);
  std::string ChunkEvent(Json chunk) const;
  void NoteTokens(Choice* choice);
  void Complete(Step* step);
  Json Usage(bool is_final) const;
  Json TimelineOf(const Choice& choice) const;
  void CancelAll(FinishReason reason);

  const GenerationPlan plan_;
  const SessionContext context_;
  const AnswerJson json_;
  std::shared_ptr<Mailbox> mailbox_;  // shared with the sinks
  std::vector<std::unique_ptr<Choice>> choices_;
  int num_started_ = 0, num_running_ = 0, num_finished_ = 0, num_settled_ = 0;
  // Choices that found an engine's queue full; they are started again as others finish.
  std::vector<int> postponed_;
  int max_running_;
  std::optional<int64_t> end_by_ns_;     // of the whole answer
  std::optional<int64_t> settle_by_ns_;  // all are finished, some not settled
  bool has_streamed_ = false;
  bool has_first_token_ = false;        // of any choice
  bool first_token_unwritten_ = false;  // streamed, on its way to the socket
};

}  // namespace lynx
