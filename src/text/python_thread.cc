// SPDX-License-Identifier: Apache-2.0
#include "text/python_thread.h"

#include <pthread.h>
#include <pybind11/embed.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "text/python_memory.h"

namespace lynx {
namespace {

namespace py = pybind11;
using Clock = std::chrono::steady_clock;

// Of the interpreter's own processor time, so that a busy machine fails no template; and in all.
constexpr auto kMaxRunTime = std::chrono::seconds(5);
constexpr auto kMaxElapsedTime = std::chrono::seconds(60);
// An interrupted task gets this long to notice.
constexpr auto kInterruptTime = std::chrono::seconds(1);
constexpr auto kInterruptInterval = std::chrono::milliseconds(10);

std::chrono::nanoseconds ProcessorTime(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

absl::Status ToStatus(const PyStatus& status) {
  if (!PyStatus_Exception(status)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "Python does not start: ", status.err_msg != nullptr ? status.err_msg : "unknown reason"));
}

// Everything that Python would otherwise look for by PATH, environment or site files is given.
absl::Status FillConfig(PyConfig* config) {
  config->site_import = 0;
  config->write_bytecode = 0;
  config->install_signal_handlers = 0;
  const std::wstring prefix = L"/usr";
  const std::wstring lib = prefix + L"/lib/python" + std::to_wstring(PY_MAJOR_VERSION);
  const std::wstring stdlib = lib + L"." + std::to_wstring(PY_MINOR_VERSION);
  const std::wstring executable = prefix + L"/bin/python3";
  config->module_search_paths_set = 1;
  for (const std::wstring& path : {stdlib, stdlib + L"/lib-dynload", lib + L"/dist-packages"}) {
    LYNX_RETURN_IF_ERROR(
        ToStatus(PyWideStringList_Append(&config->module_search_paths, path.c_str())));
  }
  for (wchar_t** field : {&config->prefix, &config->exec_prefix, &config->base_prefix,
                          &config->base_exec_prefix, &config->home}) {
    LYNX_RETURN_IF_ERROR(ToStatus(PyConfig_SetString(config, field, prefix.c_str())));
  }
  for (wchar_t** field : {&config->executable, &config->base_executable, &config->program_name}) {
    LYNX_RETURN_IF_ERROR(ToStatus(PyConfig_SetString(config, field, executable.c_str())));
  }
  return absl::OkStatus();
}

// Leaves this thread with the GIL.
absl::Status StartPython() {
  PyPreConfig pre_config;
  PyPreConfig_InitIsolatedConfig(&pre_config);
  pre_config.utf8_mode = 1;
  LYNX_RETURN_IF_ERROR(ToStatus(Py_PreInitialize(&pre_config)));
  PyConfig config;
  PyConfig_InitIsolatedConfig(&config);
  absl::Status status = FillConfig(&config);
  if (status.ok()) status = ToStatus(Py_InitializeFromConfig(&config));
  PyConfig_Clear(&config);
  LYNX_RETURN_IF_ERROR(status);
  LimitPythonMemory();
  return absl::OkStatus();
}

}  // namespace

struct PythonThread::Job {
  std::function<absl::Status()> task;
  // Guarded by State::mutex.
  enum { kQueued, kRunning, kDone, kGivenUp } phase = kQueued;
  std::chrono::nanoseconds started;  // on the interpreter's processor clock
  absl::Status result;
};

struct PythonThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;
  bool started = false;
  absl::Status start_status;
  clockid_t processor_clock;  // of the interpreter's thread

  // Guarded by the GIL.
  unsigned long thread_id = 0;            // Python's name for the interpreter's thread
  PyObject* interrupted_error = nullptr;  // a BaseException
  const Job* current_job = nullptr;
};

PythonThread::PythonThread() : state_(new State) {
  std::thread([this] { Loop(); }).detach();
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->started; });
}

absl::StatusOr<PythonThread*> PythonThread::Get() {
  static PythonThread* const thread = new PythonThread;
  LYNX_RETURN_IF_ERROR(thread->state_->start_status);
  return thread;
}

void PythonThread::Loop() {
  absl::Status start_status = StartPython();
  const bool is_running = start_status.ok();
  if (is_running) {
    state_->thread_id = PyThread_get_thread_ident();
    state_->interrupted_error =
        PyErr_NewException("lynx.Interrupted", PyExc_BaseException, nullptr);
  }
  std::unique_lock lock(state_->mutex);
  pthread_getcpuclockid(pthread_self(), &state_->processor_clock);
  state_->start_status = std::move(start_status);
  state_->started = true;
  state_->changed.notify_all();
  while (is_running) {
    PyThreadState* const python = PyEval_SaveThread();
    state_->changed.wait(lock, [this] { return !state_->queue.empty(); });
    const std::shared_ptr<Job> job = std::move(state_->queue.front());
    state_->queue.pop_front();
    const bool is_wanted = job->phase == Job::kQueued;
    if (is_wanted) {
      job->phase = Job::kRunning;
      job->started = ProcessorTime(state_->processor_clock);
      state_->changed.notify_all();
    }
    lock.unlock();
    PyEval_RestoreThread(python);
    absl::Status result = is_wanted ? RunHere(*job) : absl::OkStatus();
    lock.lock();
    job->result = std::move(result);
    job->phase = Job::kDone;
    state_->changed.notify_all();
  }
}

absl::Status PythonThread::RunHere(Job& job) {
  absl::Status result;
  state_->current_job = &job;
  {
    const PythonMemoryBudget budget;
    try {
      result = job.task();
    } catch (py::error_already_set& error) {
      result = error.matches(state_->interrupted_error)
                   ? absl::DeadlineExceededError("interrupted")
                   : absl::InternalError(absl::StrCat("Python: ", error.what()));
    } catch (const std::exception& error) {
      result = absl::InternalError(absl::StrCat("Python: ", error.what()));
    }
    job.task = nullptr;
  }
  state_->current_job = nullptr;
  // An interrupt that came too late must not hit the next job.
  PyThreadState_SetAsyncExc(state_->thread_id, nullptr);
  return result;
}

// Waits for the GIL, which may take as long as a single instruction of the task does, so this is
// done by a thread of its own. Python code may swallow one interrupt (in a destructor), so there
// are several.
void PythonThread::InterruptUntilDone(std::shared_ptr<Job> job) {
  std::thread([state = state_, job = std::move(job)] {
    bool is_done = false;
    while (!is_done) {
      const PyGILState_STATE gil = PyGILState_Ensure();
      if (state->current_job == job.get()) {
        PyThreadState_SetAsyncExc(state->thread_id, state->interrupted_error);
      }
      PyGILState_Release(gil);
      std::unique_lock lock(state->mutex);
      is_done = state->changed.wait_for(lock, kInterruptInterval,
                                        [&] { return job->phase == Job::kDone; });
    }
  }).detach();
}

void PythonThread::Enqueue(std::shared_ptr<Job> job) {
  const std::lock_guard lock(state_->mutex);
  state_->queue.push_back(std::move(job));
  state_->changed.notify_all();
}

absl::Status PythonThread::Run(std::function<absl::Status()> task,
                               std::chrono::nanoseconds max_queue_time) {
  const auto job = std::make_shared<Job>();
  job->task = std::move(task);
  Enqueue(job);
  std::unique_lock lock(state_->mutex);
  const auto has_begun = [&] { return job->phase != Job::kQueued; };
  if (!state_->changed.wait_for(lock, max_queue_time, has_begun)) {
    job->phase = Job::kGivenUp;
    return absl::UnavailableError("chat templates: Python is busy with other work");
  }
  const auto is_done = [&] { return job->phase == Job::kDone; };
  const auto end = Clock::now() + kMaxElapsedTime;
  while (!is_done() && Clock::now() < end) {
    const auto used = ProcessorTime(state_->processor_clock) - job->started;
    if (used >= kMaxRunTime) break;
    state_->changed.wait_for(lock, kMaxRunTime - used, is_done);
  }
  if (is_done()) return job->result;
  InterruptUntilDone(job);
  if (state_->changed.wait_for(lock, kInterruptTime, is_done)) return job->result;
  return absl::DeadlineExceededError("could not be interrupted");
}

void PythonThread::Post(std::function<void()> task) {
  const auto job = std::make_shared<Job>();
  job->task = [task = std::move(task)] {
    task();
    return absl::OkStatus();
  };
  Enqueue(job);
}

}  // namespace lynx
