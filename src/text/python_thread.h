// SPDX-License-Identifier: Apache-2.0
// The embedded Python: one interpreter on one thread of its own, with a queue before it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "lynx/status.h"

namespace lynx {

// CPython exists once in a process, so this does too: it starts with the first Get() and stays
// until the process ends. It reads no PYTHON* variable, sets no signal handler, ignores PATH and
// virtual environments and imports only from Debian's directories.
class PythonThread {
 public:
  // kFailedPrecondition when Python could not be started.
  static absl::StatusOr<PythonThread*> Get();

  // Runs `task` there, in its turn, and waits for it. A task that takes too long is interrupted
  // (the Python code in it sees an exception that is not an Exception), one that wants too much
  // memory gets a MemoryError. kDeadlineExceeded when it was interrupted or could not even be
  // interrupted; the task's captures must therefore own what they use. Exceptions must not leave
  // the task, except those of pybind11. Any thread but the interpreter's.
  // kUnavailable when other tasks kept it waiting longer than `max_queue_time`.
  absl::Status Run(std::function<absl::Status()> task,
                   std::chrono::nanoseconds max_queue_time = std::chrono::seconds(30));

  // Runs `task` there, some time; for letting go of Python objects.
  void Post(std::function<void()> task);

 private:
  struct Job;
  struct State;

  PythonThread();
  ~PythonThread() = delete;
  void Loop();
  absl::Status RunHere(Job& job);
  void InterruptUntilDone(std::shared_ptr<Job> job);
  void Enqueue(std::shared_ptr<Job> job);

  State* state_;
};

}  // namespace lynx
