// SPDX-License-Identifier: Apache-2.0
// One UCX context and worker, driven by one thread of its own that sleeps until there is something
// to do (ucp_worker_arm, epoll, an eventfd for tasks). It never spins.
//
// Handlers of active messages and completions run on that thread, mostly inside
// ucp_worker_progress.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "lynx/transport.h"

namespace lynx {

class UcxWorker {
 public:
  using Completion = std::function<void(absl::Status)>;
  // Runs on the thread every time its deadline has passed; answers when to run again (monotonic).
  using Tick = std::function<int64_t(int64_t now_ns)>;

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxOptions& options);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Before Start, and before the address leaves the process.
  absl::Status Register(unsigned message_id, ucp_am_recv_callback_t callback, void* argument);
  const std::string& address() const { return address_; }
  const std::set<uint16_t>& listening_ports() const { return listening_ports_; }

  void Start(Tick tick);  // tick may be null
  // Any thread. False, and the task is dropped, once Stop began.
  bool Run(std::function<void()> task);
  // Runs the tasks posted before and then `teardown` on the thread, gives requests a moment to
  // complete, ends thread and worker and completes the rest with an error. Idempotent; not on the
  // thread.
  void Stop(std::function<void()> teardown);

  // ---- on the thread only ----
  // on_error runs as a task of its own, never inside a callback of UCX.
  absl::StatusOr<ucp_ep_h> Connect(std::string_view address,
                                   std::function<void(absl::Status)> on_error);
  void Close(ucp_ep_h endpoint);  // at once; its requests complete with an error
  enum class Protocol : uint8_t { kEager, kRendezvous };
  // The payload stays valid until `done`, which may run before Send returns.
  void Send(ucp_ep_h endpoint, unsigned message_id, Protocol protocol,
            std::vector<std::byte> header, std::span<const std::byte> payload, Completion done);
  // Receives what a handler kept by answering UCS_INPROGRESS to a rendezvous message.
  void Receive(void* descriptor, std::span<std::byte> destination, Completion done);
  void Release(void* descriptor);
  // Gives what is being sent, and connections that are being made, a moment to get there: UCX 1.13
  // aborts the process (on either side) when an endpoint ends while it answers a wire-up request
  // (fixed by openucx/ucx 9ccaf31bb6). Before the last Close, not inside a callback of UCX.
  void Flush();

 private:
  struct Request {
    UcxWorker* worker;
    std::vector<std::byte> header;  // UCX reads it until completion
    Completion done;
  };
  struct ErrorSink {
    UcxWorker* worker;
    std::function<void(absl::Status)> on_error;
  };

  UcxWorker() = default;
  absl::Status Open(const UcxOptions& options);
  void Loop(const Tick& tick);
  bool RunTasks();
  void Sleep(int64_t until_ns);
  void ProgressUntil(const std::function<bool()>& condition);
  Request* NewRequest(std::vector<std::byte> header, Completion done);
  void Began(ucs_status_ptr_t handle, Request* request);
  void Complete(Request* request, ucs_status_t status);
  static void OnSent(void* handle, ucs_status_t status, void* request);
  static void OnReceived(void* handle, ucs_status_t status, size_t length, void* request);
  static void OnEndpointError(void* sink, ucp_ep_h endpoint, ucs_status_t status);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wake_fd_ = -1;   // an eventfd: tasks are waiting
  int epoll_fd_ = -1;  // wake_fd_ and UCX's own
  std::string address_;
  std::set<uint16_t> listening_ports_;

  std::mutex mu_;
  bool stopping_ = false;
  std::vector<std::function<void()>> tasks_;
  std::thread thread_;

  // The thread's own.
  std::unordered_set<Request*> requests_;
  std::deque<ErrorSink> error_sinks_;  // UCX keeps pointers to them
};

}  // namespace lynx
