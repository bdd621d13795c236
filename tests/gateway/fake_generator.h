// SPDX-License-Identifier: Apache-2.0
// A Generator for tests: answers at once from a script, or output by output as the test says.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lynx/generator.h"

namespace lynx {

inline EngineOutput Tokens(std::vector<TokenId> ids) {
  EngineOutput output;
  for (TokenId id : ids)
    output.tokens.push_back({.id = id, .logprob = -0.5f, .rank = 1, .top = {}});
  return output;
}

inline EngineOutput Finish(FinishReason reason, std::vector<TokenId> ids = {}) {
  EngineOutput output = Tokens(std::move(ids));
  output.finish_reason = reason;
  return output;
}

inline EngineOutput Failure(absl::Status status) {
  EngineOutput output;
  output.error = std::move(status);
  return output;
}

class FakeGenerator final : public Generator {
 public:
  using Script = std::function<std::vector<EngineOutput>(const Request&)>;

  // Null: the test sends every output itself.
  void set_script(Script script) { script_ = std::move(script); }
  void set_ready(bool ready) { ready_ = ready; }
  void set_daemons(std::vector<DaemonState> daemons) {
    std::lock_guard lock(mutex_);
    daemons_ = std::move(daemons);
  }

  bool ready() const override { return ready_; }
  std::vector<DaemonState> daemons() const override {
    std::lock_guard lock(mutex_);
    return daemons_;
  }

  std::unique_ptr<Generation> Generate(Request request,
                                       std::function<void(EngineOutput)> sink) override {
    std::vector<EngineOutput> outputs;
    if (script_) outputs = script_(request);
    size_t index;
    {
      std::lock_guard lock(mutex_);
      index = calls_.size();
      calls_.push_back({.request = std::move(request), .sink = sink});
    }
    changed_.notify_all();
    for (EngineOutput& output : outputs) sink(std::move(output));
    return std::make_unique<FakeGeneration>(this, index);
  }

  // The request of call `index`; waits for it.
  Request WaitForCall(size_t index) {
    std::unique_lock lock(mutex_);
    Wait(lock, [&] { return calls_.size() > index; });
    return calls_.at(index).request;
  }
  void Send(size_t index, EngineOutput output) {
    WaitForCall(index);
    std::function<void(EngineOutput)> sink;
    {
      std::lock_guard lock(mutex_);
      sink = calls_[index].sink;
    }
    sink(std::move(output));
  }
  bool WaitForStop(size_t index) {
    std::unique_lock lock(mutex_);
    return Wait(lock, [&] { return calls_.size() > index && calls_[index].is_stopped; });
  }
  // True when the call was cancelled, or has been dropped after its end.
  bool WaitForDrop(size_t index) {
    std::unique_lock lock(mutex_);
    return Wait(lock, [&] { return calls_.size() > index && calls_[index].is_dropped; });
  }
  size_t num_calls() const {
    std::lock_guard lock(mutex_);
    return calls_.size();
  }

 private:
  struct Call {
    Request request;
    std::function<void(EngineOutput)> sink;
    bool is_stopped = false;
    bool is_dropped = false;
  };
  class FakeGeneration final : public Generation {
   public:
    FakeGeneration(FakeGenerator* owner, size_t index) : owner_(owner), index_(index) {}
    ~FakeGeneration() override { Set(&Call::is_dropped); }
    void Stop() override { Set(&Call::is_stopped); }

   private:
    void Set(bool Call::*flag) {
      {
        std::lock_guard lock(owner_->mutex_);
        owner_->calls_[index_].*flag = true;
      }
      owner_->changed_.notify_all();
    }

    FakeGenerator* const owner_;
    const size_t index_;
  };

  template <typename Predicate>
  bool Wait(std::unique_lock<std::mutex>& lock, Predicate predicate) {
    return changed_.wait_for(lock, std::chrono::seconds(20), predicate);
  }

  Script script_;
  std::atomic<bool> ready_ = true;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<DaemonState> daemons_;
  std::vector<Call> calls_;
};

}  // namespace lynx
