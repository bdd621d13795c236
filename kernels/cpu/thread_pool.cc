// SPDX-License-Identifier: Apache-2.0
//
// Run publishes a job by incrementing `generation`; workers answer by incrementing `num_done`. The
// two counters lie on cache lines of their own, so that a fork costs one line's way to the workers
// and a join one line's way back. Both sides spin for kSpinTime and then sleep on the counter that
// they wait for; `num_sleeping` and `caller_sleeps` tell the other side that a wake-up is needed.
#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "kernels/cpu/available_cores.h"
#include "kernels/cpu/float_mode.h"

namespace lynx::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// A wake-up costs about 20 µs; between two operations of one forward pass there are far fewer.
constexpr std::chrono::microseconds kSpinTime{40};

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Returns when *word no longer holds `value`, or at once, or on a signal: callers check again.
void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word, int num_threads) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, num_threads, nullptr, nullptr, 0);
}

// Spins until ready() or the time is over; returns the last answer.
template <typename Ready>
bool SpinUntil(Ready ready, std::chrono::microseconds limit) {
  constexpr int kChecksPerClock = 32;
  const auto deadline = Clock::now() + limit;
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (Clock::now() < deadline);
  return ready();
}

}  // namespace

struct ThreadPool::State {
  alignas(64) std::atomic<uint32_t> generation{0};
  void (*fn)(void* context, int thread) = nullptr;  // null: the pool ends
  void* context = nullptr;

  alignas(64) std::atomic<uint32_t> num_done{0};
  alignas(64) std::atomic<uint32_t> num_sleeping{0};
  std::atomic<bool> caller_sleeps{false};

  // With more threads than cores a spinning thread only keeps a working one from its core.
  std::chrono::microseconds spin_time{0};
  std::vector<std::thread> workers;

  void Publish(void (*job)(void*, int), void* job_context);
  void Join(uint32_t num_workers);
  uint32_t AwaitJob(uint32_t seen);
  void Work(int thread, uint32_t num_workers);
};

void ThreadPool::State::Publish(void (*job)(void*, int), void* job_context) {
  fn = job;
  context = job_context;
  num_done.store(0, std::memory_order_relaxed);
  generation.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleeping.load(std::memory_order_seq_cst) != 0) FutexWake(&generation, INT_MAX);
}

void ThreadPool::State::Join(uint32_t num_workers) {
  const auto done = [&] { return num_done.load(std::memory_order_seq_cst) == num_workers; };
  if (SpinUntil(done, spin_time)) return;
  caller_sleeps.store(true, std::memory_order_seq_cst);
  for (uint32_t n; (n = num_done.load(std::memory_order_seq_cst)) != num_workers;) {
    FutexWait(&num_done, n);
  }
  caller_sleeps.store(false, std::memory_order_relaxed);
}

uint32_t ThreadPool::State::AwaitJob(uint32_t seen) {
  const auto published = [&] { return generation.load(std::memory_order_seq_cst) != seen; };
  if (!SpinUntil(published, spin_time)) {
    num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    while (!published()) FutexWait(&generation, seen);
    num_sleeping.fetch_sub(1, std::memory_order_relaxed);
  }
  return seen + 1;
}

void ThreadPool::State::Work(int thread, uint32_t num_workers) {
  ScopedFlushToZero flush_to_zero;
  for (uint32_t seen = 0;;) {
    seen = AwaitJob(seen);
    if (fn == nullptr) return;
    fn(context, thread);
    const bool last = num_done.fetch_add(1, std::memory_order_seq_cst) + 1 == num_workers;
    if (last && caller_sleeps.load(std::memory_order_seq_cst)) FutexWake(&num_done, 1);
  }
}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), state_(std::make_unique<State>()) {
  if (num_threads <= 1) return;
  if (num_threads <= std::ssize(AvailableCores())) state_->spin_time = kSpinTime;
  // Signals belong to the program's own threads.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  const uint32_t num_workers = num_threads - 1;
  for (int thread = 1; thread < num_threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread, num_workers] {
      char name[16];
      std::snprintf(name, sizeof(name), "compute%d", thread % 1000);
      pthread_setname_np(pthread_self(), name);
      state->Work(thread, num_workers);
    });
  }
  pthread_sigmask(SIG_SETMASK, &saved, nullptr);
}

ThreadPool::~ThreadPool() {
  if (state_->workers.empty()) return;
  state_->Publish(nullptr, nullptr);
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::Run(void (*fn)(void* context, int thread), void* context) {
  ScopedFlushToZero flush_to_zero;
  if (num_threads_ <= 1) {
    fn(context, 0);
    return;
  }
  state_->Publish(fn, context);
  fn(context, 0);
  state_->Join(num_threads_ - 1);
}

}  // namespace lynx::cpu
