// SPDX-License-Identifier: Apache-2.0
// Fork and join for one engine thread. Workers spin for a few tens of microseconds after a job and
// then sleep on a futex, so that a decode step pays about 0.3 µs per fork and an idle daemon
// nothing. Where other work keeps a worker from its core, its share is run by the caller.
#pragma once

#include <memory>

namespace lynx::cpu {

class ThreadPool {
 public:
  // The calling thread is one of num_threads. Every thread of the pool (and the caller, while it is
  // inside Run) has FTZ and DAZ set.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(context, thread) once for each thread = 0 .. num_threads - 1, and waits. Thread 0 is
  // the caller; the others are workers, or the caller after that.
  void Run(void (*fn)(void* context, int thread), void* context);

  // f(thread) for each thread.
  template <typename F>
  void Parallel(F&& f) {
    Run([](void* context, int thread) { (*static_cast<F*>(context))(thread); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

}  // namespace lynx::cpu
