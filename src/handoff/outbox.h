// SPDX-License-Identifier: Apache-2.0
// The mutex of a KvSender or KvReceiver, and what it has to tell its engine.
#pragma once

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace lynx {

template <typename Event>
class Outbox {
 public:
  // wake is called without the mutex, from any thread, after events were added.
  explicit Outbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Holds the mutex; wakes the engine after giving it up when an event was added.
  class Section {
   public:
    explicit Section(Outbox& outbox) : outbox_(outbox), lock_(outbox.mutex_) {}
    ~Section() {
      const bool wake = std::exchange(outbox_.wake_due_, false);
      lock_.unlock();
      if (wake) outbox_.wake_();
    }

   private:
    Outbox& outbox_;
    std::unique_lock<std::mutex> lock_;
  };

  std::mutex& mutex() const { return mutex_; }
  // With the mutex held.
  void Add(Event event) {
    events_.push_back(std::move(event));
    wake_due_ = true;
  }
  // Takes the mutex.
  std::vector<Event> Poll() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  bool wake_due_ = false;
  std::vector<Event> events_;
};

}  // namespace lynx
