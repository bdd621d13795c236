// SPDX-License-Identifier: Apache-2.0
// One kind of traffic over UCX: a context with a worker that listens, a worker per link that was
// dialled, and one thread that drives them all. The thread sleeps until there is something to do
// (ucp_worker_arm, epoll, an eventfd for tasks); it never spins.
//
// Every link has a worker of its own, and messages travel on links in one direction only, from the
// one who dialled to the other's listener. UCX 1.13 would pair endpoints of the same two workers by
// a count of connections, and aborts the process when a peer that was lost is connected to again
// (wrong pairing), or when an endpoint fails while it answers a wire-up request (fixed by
// openucx/ucx 9ccaf31bb6). So a link also says Hello first, the listener answers by the same
// connection, and a link is not closed before that answer has come or is long overdue.
//
// Handlers of active messages and completions run on the thread, mostly inside
// ucp_worker_progress.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
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

class UcxLane {
 public:
  using Completion = std::function<void(absl::Status)>;
  // Runs on the thread every time its deadline has passed; answers when to run again (monotonic).
  using Tick = std::function<int64_t(int64_t now_ns)>;
  class Link;  // one dialled connection

  static absl::StatusOr<std::unique_ptr<UcxLane>> Create(const UcxOptions& options);
  ~UcxLane();
  UcxLane(const UcxLane&) = delete;
  UcxLane& operator=(const UcxLane&) = delete;

  // The handler of messages to the listener. Before Start, and before the address leaves the
  // process. An error is a legal answer to rendezvous messages only.
  absl::Status Register(ucp_am_recv_callback_t callback, void* argument);
  const std::string& address() const { return address_; }  // of the listener
  const std::set<uint16_t>& listening_ports() const { return listening_ports_; }
  bool takes_device_memory() const { return takes_device_memory_; }

  void Start(Tick tick);  // tick may be null
  // Any thread. False, and the task is dropped, once Stop began.
  bool Run(std::function<void()> task);
  // Runs the tasks posted before and then `teardown` on the thread, gives links and messages a
  // moment to get there, ends thread and workers and completes the rest with an error. Idempotent;
  // not on the thread.
  void Stop(std::function<void()> teardown);

  // ---- on the thread only ----
  // on_error runs as a task of its own, never inside a callback of UCX, and not after Close.
  absl::StatusOr<Link*> Dial(std::string_view address, std::function<void(absl::Status)> on_error);
  // The link's unsent messages complete with an error. The link is gone for the caller.
  void Close(Link* link);
  enum class Protocol : uint8_t { kEager, kRendezvous };
  // The payload stays valid until `done`, which may run before Send returns.
  void Send(Link* link, Protocol protocol, std::vector<std::byte> header, MemoryView payload,
            Completion done);
  // Receives what the handler kept by answering UCS_INPROGRESS to a rendezvous message.
  void Receive(void* descriptor, MutableMemoryView destination, Completion done);
  void Release(void* descriptor);

 private:
  struct Request;
  using Requests = std::unordered_set<Request*>;

  UcxLane() = default;
  absl::Status Open(const UcxOptions& options);
  absl::StatusOr<ucp_worker_h> NewWorker();
  absl::Status Watch(int fd);
  void Loop(const Tick& tick);
  bool RunTasks();
  bool ProgressAll();
  bool ArmAll();
  void Sleep(int64_t until_ns);
  void CloseDueLinks(int64_t now_ns);
  void EndWorker(ucp_worker_h worker, Requests& requests);
  void Send(ucp_ep_h endpoint, Requests& owner, unsigned message_id, uint32_t flags,
            std::vector<std::byte> header, MemoryView payload, Completion done);
  static void Began(ucs_status_ptr_t handle, Request* request);
  static void Complete(Request* request, ucs_status_t status);
  static void OnSent(void* handle, ucs_status_t status, void* request);
  static void OnReceived(void* handle, ucs_status_t status, size_t length, void* request);
  static void OnEndpointError(void* link, ucp_ep_h endpoint, ucs_status_t status);
  static ucs_status_t OnHello(void* lane, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* params);
  static ucs_status_t OnWelcome(void* link, const void* header, size_t header_bytes, void* data,
                                size_t bytes, const ucp_am_recv_param_t* params);

  std::function<void()> use_device_;  // null: host memory only
  bool takes_device_memory_ = false;
  ucp_context_h context_ = nullptr;
  ucp_worker_h listener_ = nullptr;
  int wake_fd_ = -1;   // an eventfd: tasks are waiting
  int epoll_fd_ = -1;  // wake_fd_ and those of all workers
  std::string address_;
  std::set<uint16_t> listening_ports_;

  std::mutex mu_;
  bool stopping_ = false;
  std::vector<std::function<void()>> tasks_;
  std::thread thread_;

  // The thread's own.
  std::list<std::unique_ptr<Link>> links_;
  std::list<std::unique_ptr<Link>> closing_;
  Requests receives_;  // on the listener
  Requests answers_;   // to Hellos, under way
  int64_t last_hello_ns_ = 0;
  bool abandoned_worker_ = false;
};

}  // namespace lynx
