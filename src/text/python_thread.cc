// SPDX-License-Identifier: Apache-2.0
#include "text/python_thread.h"

#include <pybind11/embed.h>

#include <atomic>
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

constexpr auto kMaxQueueTime = std::chrono::seconds(30);
constexpr auto kMaxRunTime = std::chrono::seconds(5);
// An interrupted task gets this long to notice.
constexpr auto kInterruptTime = std::chrono::seconds(1);
constexpr auto kInterruptInterval = std::chrono::milliseconds(10);

// The interpreter's thread alone touches these: the job it is at, as the interrupt sees it, and the
// exception that interrupts (a BaseException).
std::atomic<bool>* current_job_expired = nullptr;
PyObject* interrupted_error = nullptr;

// A pending call: Python runs it on its main thread, which is ours, between two instructions.
int InterruptCurrentJob(void*) {
  if (current_job_expired == nullptr || !*current_job_expired) return 0;
  PyErr_SetString(interrupted_error, "the time is over");
  return -1;
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
  interrupted_error = PyErr_NewException("lynx.Interrupted", PyExc_BaseException, nullptr);
  return absl::OkStatus();
}

}  // namespace

struct PythonThread::Job {
  std::function<absl::Status()> task;
  std::atomic<bool> expired = false;
  enum { kQueued, kRunning, kDone } phase = kQueued;  // guarded by State::mutex
  Clock::time_point started;
  absl::Status result;
};

struct PythonThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;
  bool started = false;
  absl::Status start_status;
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
  std::unique_lock lock(state_->mutex);
  state_->start_status = StartPython();
  state_->started = true;
  state_->changed.notify_all();
  while (state_->start_status.ok()) {
    state_->changed.wait(lock, [this] { return !state_->queue.empty(); });
    const std::shared_ptr<Job> job = std::move(state_->queue.front());
    state_->queue.pop_front();
    if (job->expired) continue;
    job->phase = Job::kRunning;
    job->started = Clock::now();
    lock.unlock();
    absl::Status result;
    current_job_expired = &job->expired;
    const PythonMemoryBudget budget;
    try {
      result = job->task();
    } catch (py::error_already_set& error) {
      result = error.matches(interrupted_error)
                   ? absl::DeadlineExceededError("interrupted")
                   : absl::InternalError(absl::StrCat("Python: ", error.what()));
    } catch (const std::exception& error) {
      result = absl::InternalError(absl::StrCat("Python: ", error.what()));
    }
    current_job_expired = nullptr;
    job->task = nullptr;
    lock.lock();
    job->result = std::move(result);
    job->phase = Job::kDone;
    state_->changed.notify_all();
  }
}

void PythonThread::Enqueue(std::shared_ptr<Job> job) {
  const std::lock_guard lock(state_->mutex);
  state_->queue.push_back(std::move(job));
  state_->changed.notify_all();
}

absl::Status PythonThread::Run(std::function<absl::Status()> task) {
  const auto job = std::make_shared<Job>();
  job->task = std::move(task);
  Enqueue(job);
  std::unique_lock lock(state_->mutex);
  const auto has_begun = [&] { return job->phase != Job::kQueued; };
  if (!state_->changed.wait_for(lock, kMaxQueueTime, has_begun)) {
    job->expired = true;
    return absl::DeadlineExceededError("Python was busy with other work");
  }
  const auto is_done = [&] { return job->phase == Job::kDone; };
  if (state_->changed.wait_until(lock, job->started + kMaxRunTime, is_done)) return job->result;
  job->expired = true;
  while (Clock::now() < job->started + kMaxRunTime + kInterruptTime) {
    Py_AddPendingCall(InterruptCurrentJob, nullptr);
    if (state_->changed.wait_for(lock, kInterruptInterval, is_done)) return job->result;
  }
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
