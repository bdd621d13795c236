// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.h"

#include <chrono>
#include <utility>

namespace lynx {

bool Inbox::Push(Command&& command) {
  std::lock_guard lock(mutex_);
  if (closed_) return false;
  commands_.push_back(std::move(command));
  awake_ = true;
  woken_.notify_one();
  return true;
}

void Inbox::Wake() {
  std::lock_guard lock(mutex_);
  awake_ = true;
  woken_.notify_one();
}

void Inbox::Take(std::vector<Command>& commands) {
  commands.clear();
  std::lock_guard lock(mutex_);
  commands.swap(commands_);
}

bool Inbox::Wait(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  woken_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [this] { return awake_; });
  return std::exchange(awake_, false);
}

void Inbox::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

}  // namespace lynx
