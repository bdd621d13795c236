// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lynx {

// Turns SIGTERM and SIGINT into a call on a thread of its own. Create it before any other thread,
// since threads inherit the signal mask.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;

  // count is 1 for the first signal (drain), 2 and more for later ones (stop now). Call once.
  void OnStop(std::function<void(int count)> handler);
  // No handler runs after this.
  void End();

 private:
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace lynx
