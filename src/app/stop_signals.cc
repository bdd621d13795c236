// SPDX-License-Identifier: Apache-2.0
#include "app/stop_signals.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace lynx {
namespace {

sigset_t StopSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR2);  // wakes the thread when it shall end; means nothing from outside
  return set;
}

}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = StopSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() { End(); }

void StopSignals::End() {
  if (!thread_.joinable()) return;
  ending_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR2);
  thread_.join();
}

void StopSignals::OnStop(std::function<void(int)> handler) {
  thread_ = std::thread([this, handler = std::move(handler)] {
    const sigset_t set = StopSet();
    for (int count = 1;;) {
      int signal = 0;
      if (sigwait(&set, &signal) != 0) return;
      if (ending_) return;
      if (signal != SIGUSR2) handler(count++);
    }
  });
}

}  // namespace lynx
