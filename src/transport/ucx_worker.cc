// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx_worker.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/clock.h"
#include "transport/tcp_sockets.h"
#include "transport/ucx_settings.h"

namespace lynx {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
// A missed wake-up of UCX costs at most this while something is under way.
constexpr int64_t kBusySleepNs = 20 * kNsPerMs;
constexpr int64_t kIdleSleepNs = 1000 * kNsPerMs;
constexpr int64_t kDrainNs = 300 * kNsPerMs;

}  // namespace

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxOptions& options) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  LYNX_RETURN_IF_ERROR(worker->Open(options));
  return worker;
}

absl::Status UcxWorker::Open(const UcxOptions& options) {
  LYNX_ASSIGN_OR_RETURN(ucp_config_t * config, MakeUcxConfig(options));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) return UcxError("ucp_init", status);

  const std::set<uint16_t> ports_before = ListeningPorts();
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);
  listening_ports_ = ListeningPorts();
  for (uint16_t port : ports_before) listening_ports_.erase(port);

  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  status = ucp_worker_get_address(worker_, &address, &address_bytes);
  if (status != UCS_OK) return UcxError("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(worker_, address);

  int ucx_fd = -1;
  status = ucp_worker_get_efd(worker_, &ucx_fd);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wake_event{.events = EPOLLIN, .data = {.fd = wake_fd_}};
  epoll_event ucx_event{.events = EPOLLIN, .data = {.fd = ucx_fd}};
  if (wake_fd_ < 0 || epoll_fd_ < 0 ||
      epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &wake_event) != 0 ||
      epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, ucx_fd, &ucx_event) != 0) {
    return absl::UnavailableError(absl::StrCat("eventfd or epoll: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  Stop(nullptr);
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Status UcxWorker::Register(unsigned message_id, ucp_am_recv_callback_t callback,
                                 void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  params.id = message_id;
  params.cb = callback;
  params.arg = argument;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &params);
  return status == UCS_OK ? absl::OkStatus() : UcxError("ucp_worker_set_am_recv_handler", status);
}

// ---- the thread ---------------------------------------------------------------------------------

void UcxWorker::Start(Tick tick) {
  thread_ = std::thread([this, tick = std::move(tick)] { Loop(tick); });
}

bool UcxWorker::Run(std::function<void()> task) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  eventfd_write(wake_fd_, 1);
  return true;
}

void UcxWorker::Stop(std::function<void()> teardown) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
    stopping_ = true;
    if (teardown) tasks_.push_back(std::move(teardown));
  }
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  // Only now can UCX no longer read or write what the requests refer to.
  for (Request* request : std::exchange(requests_, {})) {
    request->done(absl::UnavailableError("the transport stopped"));
    delete request;
  }
}

void UcxWorker::Loop(const Tick& tick) {
  int64_t next_tick_ns = tick ? 0 : INT64_MAX;
  while (true) {
    while (ucp_worker_progress(worker_) != 0) {
    }
    if (RunTasks()) continue;
    {
      std::lock_guard lock(mu_);
      if (stopping_ && tasks_.empty()) break;
    }
    const int64_t now = MonotonicNs();
    if (now >= next_tick_ns) next_tick_ns = tick(now);
    const ucs_status_t status = ucp_worker_arm(worker_);
    if (status == UCS_ERR_BUSY) continue;
    Sleep(std::min(next_tick_ns, now + (requests_.empty() ? kIdleSleepNs : kBusySleepNs)));
  }
  // Everything is closed; what UCX still completes, it completes itself.
  ProgressUntil([this] { return requests_.empty(); });
}

bool UcxWorker::RunTasks() {
  std::vector<std::function<void()>> tasks;
  {
    std::lock_guard lock(mu_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    task();
    task = nullptr;
  }
  return !tasks.empty();
}

void UcxWorker::Sleep(int64_t until_ns) {
  const int64_t wait_ns = std::max<int64_t>(0, until_ns - MonotonicNs());
  const int wait_ms = static_cast<int>((wait_ns + kNsPerMs - 1) / kNsPerMs);
  epoll_event events[2];
  const int num_events = epoll_wait(epoll_fd_, events, 2, wait_ms);
  for (int i = 0; i < num_events; ++i) {
    eventfd_t count = 0;
    if (events[i].data.fd == wake_fd_) eventfd_read(wake_fd_, &count);
  }
}

void UcxWorker::ProgressUntil(const std::function<bool()>& condition) {
  const int64_t end_ns = MonotonicNs() + kDrainNs;
  while (!condition() && MonotonicNs() < end_ns) {
    if (ucp_worker_progress(worker_) != 0) continue;
    if (ucp_worker_arm(worker_) == UCS_OK) Sleep(MonotonicNs() + kNsPerMs);
  }
}

void UcxWorker::Flush() {
  ucp_request_param_t params{};
  const ucs_status_ptr_t handle = ucp_worker_flush_nbx(worker_, &params);
  if (!UCS_PTR_IS_PTR(handle)) return;
  ProgressUntil([handle] { return ucp_request_check_status(handle) != UCS_INPROGRESS; });
  ucp_request_free(handle);
}

// ---- endpoints and messages ---------------------------------------------------------------------

absl::StatusOr<ucp_ep_h> UcxWorker::Connect(std::string_view address,
                                            std::function<void(absl::Status)> on_error) {
  ErrorSink& sink = error_sinks_.emplace_back(ErrorSink{this, std::move(on_error)});
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnEndpointError;
  params.err_handler.arg = &sink;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return UcxError("ucp_ep_create", status);
  return endpoint;
}

void UcxWorker::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* sink = static_cast<ErrorSink*>(argument);
  sink->worker->Run([sink, status] { sink->on_error(UcxError("endpoint", status)); });
}

void UcxWorker::Close(ucp_ep_h endpoint) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t handle = ucp_ep_close_nbx(endpoint, &params);
  if (UCS_PTR_IS_PTR(handle)) ucp_request_free(handle);
}

UcxWorker::Request* UcxWorker::NewRequest(std::vector<std::byte> header, Completion done) {
  auto* request = new Request{this, std::move(header), std::move(done)};
  requests_.insert(request);
  return request;
}

void UcxWorker::Send(ucp_ep_h endpoint, unsigned message_id, Protocol protocol,
                     std::vector<std::byte> header, std::span<const std::byte> payload,
                     Completion done) {
  Request* request = NewRequest(std::move(header), std::move(done));
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = protocol == Protocol::kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  params.user_data = request;
  params.cb.send = OnSent;
  Began(ucp_am_send_nbx(endpoint, message_id, request->header.data(), request->header.size(),
                        payload.data(), payload.size(), &params),
        request);
}

void UcxWorker::Receive(void* descriptor, std::span<std::byte> destination, Completion done) {
  Request* request = NewRequest({}, std::move(done));
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.user_data = request;
  params.cb.recv_am = OnReceived;
  Began(ucp_am_recv_data_nbx(worker_, descriptor, destination.data(), destination.size(), &params),
        request);
}

void UcxWorker::Release(void* descriptor) { ucp_am_data_release(worker_, descriptor); }

// A handle that is no pointer means that the callback will not run.
void UcxWorker::Began(ucs_status_ptr_t handle, Request* request) {
  if (!UCS_PTR_IS_PTR(handle)) Complete(request, UCS_PTR_RAW_STATUS(handle));
}

void UcxWorker::Complete(Request* request, ucs_status_t status) {
  requests_.erase(request);
  request->done(status == UCS_OK ? absl::OkStatus() : UcxError("transfer", status));
  delete request;
}

void UcxWorker::OnSent(void* handle, ucs_status_t status, void* argument) {
  auto* request = static_cast<Request*>(argument);
  request->worker->Complete(request, status);
  ucp_request_free(handle);
}

void UcxWorker::OnReceived(void* handle, ucs_status_t status, size_t, void* argument) {
  OnSent(handle, status, argument);
}

}  // namespace lynx
