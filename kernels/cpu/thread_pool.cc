// SPDX-License-Identifier: Apache-2.0
//
// Run publishes a job by incrementing `generation`. Each worker's share of it is run by whoever
// takes it first, by raising `taken` to the generation: the worker, or the caller once it has
// nothing else left, so that nobody waits for a worker that has no core. Workers answer by
// incrementing `num_done`. What is awaited lies on cache lines of its own: a fork costs one line's
// way to the workers and a join one line's way back.
//
// Both sides spin for kSpinTime and then sleep on the counter that they wait for; `num_sleeping`
// and `caller_sleeps` tell the other side that a wake-up is needed. A worker that finds itself on
// the caller's core sleeps soon: spinning there would only keep the caller from publishing.
#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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

// Spins until ready(), futile() or the time is over; returns the last answer of ready().
template <typename Ready, typename Futile>
bool SpinUntil(Ready ready, std::chrono::microseconds limit, Futile futile) {
  constexpr int kChecksPerClock = 32;
  const auto deadline = Clock::now() + limit;
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (Clock::now() < deadline && !futile());
  return ready();
}

// A worker's share of the current job.
struct alignas(64) Share {
  std::atomic<uint32_t> taken{0};  // the last generation whose share somebody has taken

  // Whether the share of this generation, the current one, is now the calling thread's.
  bool Take(uint32_t generation) {
    uint32_t before = generation - 1;
    return taken.load(std::memory_order_relaxed) == before &&
           taken.compare_exchange_strong(before, generation, std::memory_order_acq_rel);
  }
};

}  // namespace

struct ThreadPool::State {
  explicit State(int num_workers) : shares(num_workers) {}

  alignas(64) std::atomic<uint32_t> generation{0};
  void (*fn)(void* context, int thread) = nullptr;  // null: the pool ends
  void* context = nullptr;
  std::atomic<int> caller_core{-1};

  alignas(64) std::atomic<uint32_t> num_done{0};
  alignas(64) std::atomic<uint32_t> num_sleeping{0};
  std::atomic<bool> caller_sleeps{false};

  // With more threads than cores a spinning thread only keeps a working one from its core.
  std::chrono::microseconds spin_time{0};
  std::vector<Share> shares;  // of thread 1, 2 ...
  std::vector<std::thread> workers;

  uint32_t Publish(void (*job)(void*, int), void* job_context);
  void RunUntaken(uint32_t job);
  void Join();
  uint32_t AwaitJob(uint32_t seen);
  void Work(int thread);
};

uint32_t ThreadPool::State::Publish(void (*job)(void*, int), void* job_context) {
  fn = job;
  context = job_context;
  caller_core.store(sched_getcpu(), std::memory_order_relaxed);
  num_done.store(0, std::memory_order_relaxed);
  const uint32_t published = generation.fetch_add(1, std::memory_order_seq_cst) + 1;
  if (num_sleeping.load(std::memory_order_seq_cst) != 0) FutexWake(&generation, INT_MAX);
  return published;
}

void ThreadPool::State::RunUntaken(uint32_t job) {
  for (size_t i = 0; i < shares.size(); ++i) {
    if (!shares[i].Take(job)) continue;
    fn(context, static_cast<int>(i) + 1);
    num_done.fetch_add(1, std::memory_order_seq_cst);
  }
}

void ThreadPool::State::Join() {
  const auto done = [&] { return num_done.load(std::memory_order_seq_cst) == shares.size(); };
  if (SpinUntil(done, spin_time, [] { return false; })) return;
  caller_sleeps.store(true, std::memory_order_seq_cst);
  for (uint32_t n; (n = num_done.load(std::memory_order_seq_cst)) != shares.size();) {
    FutexWait(&num_done, n);
  }
  caller_sleeps.store(false, std::memory_order_relaxed);
}

// Returns the generation of a job that is not `seen`.
uint32_t ThreadPool::State::AwaitJob(uint32_t seen) {
  const auto published = [&] { return generation.load(std::memory_order_seq_cst) != seen; };
  const auto on_callers_core = [&] {
    return sched_getcpu() == caller_core.load(std::memory_order_relaxed);
  };
  if (!SpinUntil(published, spin_time, on_callers_core)) {
    num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    while (!published()) FutexWait(&generation, seen);
    num_sleeping.fetch_sub(1, std::memory_order_relaxed);
  }
  return generation.load(std::memory_order_acquire);
}

void ThreadPool::State::Work(int thread) {
  ScopedFlushToZero flush_to_zero;
  for (uint32_t job = 0;;) {
    job = AwaitJob(job);
    if (!shares[thread - 1].Take(job)) continue;
    // The job cannot end before this share has: fn and context stay.
    if (fn == nullptr) return;
    fn(context, thread);
    const bool last = num_done.fetch_add(1, std::memory_order_seq_cst) + 1 == shares.size();
    if (last && caller_sleeps.load(std::memory_order_seq_cst)) FutexWake(&num_done, 1);
  }
}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads), state_(std::make_unique<State>(std::max(num_threads - 1, 0))) {
  if (num_threads <= 1) return;
  if (num_threads <= std::ssize(AvailableCores())) state_->spin_time = kSpinTime;
  // Signals belong to the program's own threads.
  sigset_t all, saved;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &saved);
  for (int thread = 1; thread < num_threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread] {
      char name[16];
      std::snprintf(name, sizeof(name), "compute%d", thread % 1000);
      pthread_setname_np(pthread_self(), name);
      state->Work(thread);
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
  const uint32_t job = state_->Publish(fn, context);
  fn(context, 0);
  state_->RunUntaken(job);
  state_->Join();
}

}  // namespace lynx::cpu
