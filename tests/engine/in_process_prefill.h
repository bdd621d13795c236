// SPDX-License-Identifier: Apache-2.0
// RemotePrefill with the prefill engine in the same process. One thread, or any with real engines.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace lynx {

class InProcessPrefill final : public RemotePrefill {
 public:
  explicit InProcessPrefill(Engine* engine) : engine_(engine) {}

  std::atomic<bool> usable = true;
  std::atomic<int> num_started = 0;
  std::atomic<int> num_landed = 0;
  std::atomic<int> num_cancelled = 0;
  std::atomic<int> num_rounds = 0;
  int last_priority = 0;  // of the last attempt, as is the client
  uint64_t last_client = 0;
  absl::Status refuse_with;  // not OK: every attempt is refused with it
  bool swallow_first_token = false;
  bool lose_rounds = false;
  bool lose_cancels = false;
  absl::Status last_failure;        // of an attempt, that may fail others, too
  std::vector<int> last_failed_at;  // of the last attempt; Start answers how many there were
  std::function<void(RemotePrefillEvent&)> tamper;  // with what the prefill side reports

  void set_engine(Engine* engine) { engine_ = engine; }
  bool available() const override { return usable; }

  int Start(const RemotePrefillRequest& request,
            std::function<void(RemotePrefillEvent)> sink) override {
    ++num_started;
    last_priority = request.priority;
    last_client = request.client;
    last_failed_at = request.failed_at;
    if (!refuse_with.ok()) {
      RemotePrefillEvent event;
      event.attempt = request.attempt;
      event.error = refuse_with;
      sink(std::move(event));
      return num_started;
    }
    auto call = std::make_shared<Call>();
    call->sink = std::move(sink);
    {
      std::lock_guard lock(mutex_);
      calls_[request.attempt] = call;
    }
    engine_->SubmitPrefill(request, [this, call](RemotePrefillEvent event) {
      if (swallow_first_token && event.error.ok()) return;
      if (tamper) tamper(event);
      std::lock_guard lock(call->mutex);
      if (call->sink) call->sink(std::move(event));
    });
    return num_started;
  }
  void Verify(const VerifyRequest& request) override {
    ++num_rounds;
    if (!lose_rounds) engine_->Verify(request);
  }
  void Cancel(AttemptId attempt) override {
    ++num_cancelled;
    if (!Close(attempt) || lose_cancels) return;
    engine_->CancelPrefill(attempt);
  }
  void Failed(AttemptId, const absl::Status& why) override { last_failure = why; }
  RemotePrefillStats stats() const override { return {}; }
  // Every open call ends with this.
  void Break(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    for (const auto& [attempt, call] : calls_) {
      RemotePrefillEvent event;
      event.attempt = attempt;
      event.error = status;
      std::lock_guard call_lock(call->mutex);
      if (call->sink) call->sink(std::move(event));
    }
  }
  void Landed(AttemptId attempt) override {
    ++num_landed;
    Close(attempt);
  }

 private:
  struct Call {
    std::mutex mutex;
    std::function<void(RemotePrefillEvent)> sink;
  };
  bool Close(AttemptId attempt) {
    std::shared_ptr<Call> call;
    {
      std::lock_guard lock(mutex_);
      const auto it = calls_.find(attempt);
      if (it == calls_.end()) return false;
      call = it->second;
      calls_.erase(it);
    }
    std::lock_guard lock(call->mutex);
    call->sink = nullptr;
    return true;
  }

  Engine* engine_;
  std::mutex mutex_;
  std::map<AttemptId, std::shared_ptr<Call>> calls_;
};

}  // namespace lynx
