// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx_lane.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/clock.h"
#include "transport/short_slices.h"
#include "transport/tcp_sockets.h"
#include "transport/ucx_settings.h"

namespace lynx {
namespace {

constexpr unsigned kUserMessage = 1;
constexpr unsigned kHelloMessage = 2;
constexpr unsigned kWelcomeMessage = 3;

constexpr int64_t kNsPerMs = 1'000'000;
// A missed wake-up of UCX costs at most this while something is under way.
constexpr int64_t kBusySleepNs = 20 * kNsPerMs;
constexpr int64_t kIdleSleepNs = 1000 * kNsPerMs;
constexpr int kMaxProgressRounds = 64;
constexpr int64_t kMaxWireUpNs = 500 * kNsPerMs;   // until a Welcome is overdue
constexpr int64_t kSettleNs = 100 * kNsPerMs;      // for UCX's own answer to who dialled us
constexpr int64_t kMaxClosingNs = 300 * kNsPerMs;  // until requests of a closed link are given up

absl::Status RegisterHandler(ucp_worker_h worker, unsigned message_id,
                             ucp_am_recv_callback_t callback, void* argument) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  params.id = message_id;
  params.cb = callback;
  params.arg = argument;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker, &params);
  return status == UCS_OK ? absl::OkStatus() : UcxError("ucp_worker_set_am_recv_handler", status);
}

absl::StatusOr<int> EventFd(ucp_worker_h worker) {
  int fd = -1;
  const ucs_status_t status = ucp_worker_get_efd(worker, &fd);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);
  return fd;
}

}  // namespace

struct UcxLane::Request {
  Requests* owner;                // the set this is in
  std::vector<std::byte> header;  // UCX reads it until completion
  Completion done;
};

class UcxLane::Link {
 public:
  UcxLane* lane = nullptr;
  ucp_worker_h worker = nullptr;
  ucp_ep_h endpoint = nullptr;
  std::function<void(absl::Status)> on_error;  // null once it has failed or is closed
  Requests requests;
  int64_t dialled_ns = 0;
  bool welcomed = false;
  bool failed = false;
  bool force_closed = false;
  int64_t closed_ns = 0;  // when force_closed

  bool WireUpIsOver(int64_t now_ns) const {
    return welcomed || failed || now_ns - dialled_ns > kMaxWireUpNs;
  }
};

absl::StatusOr<std::unique_ptr<UcxLane>> UcxLane::Create(const UcxOptions& options) {
  std::unique_ptr<UcxLane> lane(new UcxLane);
  LYNX_RETURN_IF_ERROR(lane->Open(options));
  return lane;
}

absl::Status UcxLane::Open(const UcxOptions& options) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || epoll_fd_ < 0) {
    return absl::UnavailableError(absl::StrCat("eventfd or epoll: ", std::strerror(errno)));
  }
  LYNX_RETURN_IF_ERROR(Watch(wake_fd_));

  if (options.use_device != nullptr && BuiltForDeviceMemory()) use_device_ = options.use_device;
  if (use_device_ != nullptr) use_device_();
  LYNX_ASSIGN_OR_RETURN(ucp_config_t * config, MakeUcxConfig(options));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) return UcxError("ucp_init", status);
  takes_device_memory_ = use_device_ != nullptr && ReachesDeviceMemory(context_);

  const std::set<uint16_t> ports_before = ListeningPorts();
  LYNX_ASSIGN_OR_RETURN(listener_, NewWorker());
  listening_ports_ = ListeningPorts();
  for (uint16_t port : ports_before) listening_ports_.erase(port);

  ucp_address_t* address = nullptr;
  size_t address_bytes = 0;
  status = ucp_worker_get_address(listener_, &address, &address_bytes);
  if (status != UCS_OK) return UcxError("ucp_worker_get_address", status);
  address_.assign(reinterpret_cast<const char*>(address), address_bytes);
  ucp_worker_release_address(listener_, address);
  return RegisterHandler(listener_, kHelloMessage, OnHello, this);
}

absl::StatusOr<ucp_worker_h> UcxLane::NewWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  const ucs_status_t status = ucp_worker_create(context_, &params, &worker);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);
  absl::StatusOr<int> fd = EventFd(worker);
  absl::Status watched = fd.ok() ? Watch(*fd) : fd.status();
  if (!watched.ok()) {
    ucp_worker_destroy(worker);
    return watched;
  }
  return worker;
}

absl::Status UcxLane::Watch(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("epoll_ctl: ", std::strerror(errno)));
}

absl::Status UcxLane::Register(ucp_am_recv_callback_t callback, void* argument) {
  return RegisterHandler(listener_, kUserMessage, callback, argument);
}

UcxLane::~UcxLane() {
  Stop(nullptr);
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
}

// ---- the thread ---------------------------------------------------------------------------------

void UcxLane::Start(Tick tick) {
  thread_ = std::thread([this, tick = std::move(tick)] {
    AskForShortSlices();
    if (use_device_ != nullptr) use_device_();
    Loop(tick);
  });
}

bool UcxLane::Run(std::function<void()> task) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  eventfd_write(wake_fd_, 1);
  return true;
}

void UcxLane::Stop(std::function<void()> teardown) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
    stopping_ = true;
    if (teardown) tasks_.push_back(std::move(teardown));
  }
  if (wake_fd_ >= 0) eventfd_write(wake_fd_, 1);
  if (thread_.joinable()) thread_.join();
  for (auto* links : {&links_, &closing_}) {
    for (const auto& link : *links) EndWorker(link->worker, link->requests);
  }
  receives_.merge(answers_);
  if (listener_ != nullptr) EndWorker(std::exchange(listener_, nullptr), receives_);
  ucp_context_h context = std::exchange(context_, nullptr);
  if (context != nullptr && !abandoned_worker_) ucp_cleanup(context);
}

void UcxLane::Loop(const Tick& tick) {
  int64_t next_tick_ns = tick ? 0 : INT64_MAX;
  int64_t stop_ns = INT64_MAX;  // when to end at the latest
  while (true) {
    // Tasks and the tick do not wait until the sockets are dry; ArmAll and epoll see what is left.
    for (int i = 0; i < kMaxProgressRounds && ProgressAll(); ++i) {
    }
    if (RunTasks()) continue;
    const int64_t now = MonotonicNs();
    CloseDueLinks(now);
    bool stopping = false;
    {
      std::lock_guard lock(mu_);
      stopping = stopping_ && tasks_.empty();
    }
    if (stopping) {
      if (stop_ns == INT64_MAX) {
        stop_ns = now + kMaxWireUpNs;
        next_tick_ns = INT64_MAX;
        last_hello_ns_ = std::max(last_hello_ns_, now);  // one may be on its way
      }
      const bool settled = answers_.empty() && now - last_hello_ns_ >= kSettleNs;
      if ((settled && closing_.empty()) || now >= stop_ns) return;
    } else if (now >= next_tick_ns) {
      next_tick_ns = tick(now);
    }
    if (!ArmAll()) continue;
    bool busy = stopping || !receives_.empty() || !answers_.empty() || !closing_.empty();
    for (const auto& link : links_) busy = busy || !link->requests.empty();
    Sleep(std::min(next_tick_ns, now + (busy ? kBusySleepNs : kIdleSleepNs)));
  }
}

bool UcxLane::RunTasks() {
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

bool UcxLane::ProgressAll() {
  unsigned count = ucp_worker_progress(listener_);
  for (auto* links : {&links_, &closing_}) {
    for (const auto& link : *links) count += ucp_worker_progress(link->worker);
  }
  return count != 0;
}

// False when something has happened meanwhile and must be progressed first.
bool UcxLane::ArmAll() {
  if (ucp_worker_arm(listener_) == UCS_ERR_BUSY) return false;
  for (auto* links : {&links_, &closing_}) {
    for (const auto& link : *links) {
      if (ucp_worker_arm(link->worker) == UCS_ERR_BUSY) return false;
    }
  }
  return true;
}

void UcxLane::Sleep(int64_t until_ns) {
  const int64_t wait_ns = std::max<int64_t>(0, until_ns - MonotonicNs());
  const int wait_ms = static_cast<int>((wait_ns + kNsPerMs - 1) / kNsPerMs);
  epoll_event events[8];
  const int num_events = epoll_wait(epoll_fd_, events, 8, wait_ms);
  for (int i = 0; i < num_events; ++i) {
    eventfd_t count = 0;
    if (events[i].data.fd == wake_fd_) eventfd_read(wake_fd_, &count);
  }
}

// ---- links --------------------------------------------------------------------------------------

absl::StatusOr<UcxLane::Link*> UcxLane::Dial(std::string_view address,
                                             std::function<void(absl::Status)> on_error) {
  LYNX_ASSIGN_OR_RETURN(const ucp_worker_h worker, NewWorker());
  auto link = std::make_unique<Link>();
  link->lane = this;
  link->worker = worker;
  link->on_error = std::move(on_error);
  link->dialled_ns = MonotonicNs();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnEndpointError;
  params.err_handler.arg = link.get();
  absl::Status registered = RegisterHandler(worker, kWelcomeMessage, OnWelcome, link.get());
  const ucs_status_t status = ucp_ep_create(worker, &params, &link->endpoint);
  if (status != UCS_OK || !registered.ok()) {
    EndWorker(worker, link->requests);
    return registered.ok() ? UcxError("ucp_ep_create", status) : registered;
  }
  links_.push_back(std::move(link));
  Link* dialled = links_.back().get();
  Send(dialled->endpoint, dialled->requests, kHelloMessage,
       UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY, {}, {}, [](const absl::Status&) {});
  return dialled;
}

// Answers on the connection the Hello came by, behind UCX's own answer.
ucs_status_t UcxLane::OnHello(void* argument, const void*, size_t, void*, size_t,
                              const ucp_am_recv_param_t* params) {
  auto* lane = static_cast<UcxLane*>(argument);
  lane->last_hello_ns_ = MonotonicNs();
  if ((params->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  lane->Send(params->reply_ep, lane->answers_, kWelcomeMessage, UCP_AM_SEND_FLAG_EAGER, {}, {},
             [](const absl::Status&) {});
  return UCS_OK;
}

ucs_status_t UcxLane::OnWelcome(void* argument, const void*, size_t, void*, size_t,
                                const ucp_am_recv_param_t*) {
  static_cast<Link*>(argument)->welcomed = true;
  return UCS_OK;
}

void UcxLane::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* link = static_cast<Link*>(argument);
  link->failed = true;
  if (!link->on_error) return;
  link->lane->Run([on_error = std::exchange(link->on_error, nullptr), status] {
    on_error(UcxError("endpoint", status));
  });
}

void UcxLane::Close(Link* link) {
  link->on_error = nullptr;
  auto it = std::find_if(links_.begin(), links_.end(),
                         [link](const auto& other) { return other.get() == link; });
  LYNX_CHECK(it != links_.end());
  closing_.splice(closing_.end(), links_, it);
}

// A closed link is force-closed once its wire-up is over, and destroyed once its requests are.
void UcxLane::CloseDueLinks(int64_t now_ns) {
  for (auto it = closing_.begin(); it != closing_.end();) {
    Link& link = **it;
    if (!link.force_closed && link.WireUpIsOver(now_ns)) {
      link.force_closed = true;
      link.closed_ns = now_ns;
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t handle = ucp_ep_close_nbx(link.endpoint, &params);
      if (UCS_PTR_IS_PTR(handle)) ucp_request_free(handle);
    }
    const bool overdue = now_ns - link.closed_ns > kMaxClosingNs;
    if (link.force_closed && (link.requests.empty() || overdue)) {
      EndWorker(link.worker, link.requests);
      it = closing_.erase(it);
    } else {
      ++it;
    }
  }
}

// With requests left UCX 1.13 would abort in ucp_worker_destroy. Such a worker is abandoned
// instead: it is never progressed again, so nothing touches what the requests refer to.
void UcxLane::EndWorker(ucp_worker_h worker, Requests& requests) {
  if (requests.empty()) return ucp_worker_destroy(worker);
  abandoned_worker_ = true;
  if (absl::StatusOr<int> fd = EventFd(worker); fd.ok()) {
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, *fd, nullptr);
  }
  for (Request* request : std::exchange(requests, {})) {
    request->done(absl::UnavailableError("the connection was closed"));
    request->done = nullptr;  // UCX keeps a pointer to the request
  }
}

// ---- messages -----------------------------------------------------------------------------------

void UcxLane::Send(Link* link, Protocol protocol, std::vector<std::byte> header, MemoryView payload,
                   Completion done) {
  const uint32_t flags =
      protocol == Protocol::kEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  Send(link->endpoint, link->requests, kUserMessage, flags, std::move(header), payload,
       std::move(done));
}

void UcxLane::Send(ucp_ep_h endpoint, Requests& owner, unsigned message_id, uint32_t flags,
                   std::vector<std::byte> header, MemoryView payload, Completion done) {
  auto* request = new Request{&owner, std::move(header), std::move(done)};
  owner.insert(request);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.flags = flags;
  params.memory_type = UcxMemoryType(payload.memory);
  params.user_data = request;
  params.cb.send = OnSent;
  Began(ucp_am_send_nbx(endpoint, message_id, request->header.data(), request->header.size(),
                        payload.bytes.data(), payload.size(), &params),
        request);
}

void UcxLane::Receive(void* descriptor, MutableMemoryView destination, Completion done) {
  auto* request = new Request{&receives_, {}, std::move(done)};
  receives_.insert(request);
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.user_data = request;
  params.memory_type = UcxMemoryType(destination.memory);
  params.cb.recv_am = OnReceived;
  Began(ucp_am_recv_data_nbx(listener_, descriptor, destination.bytes.data(), destination.size(),
                             &params),
        request);
}

void UcxLane::Release(void* descriptor) { ucp_am_data_release(listener_, descriptor); }

// A handle that is no pointer means that the callback will not run.
void UcxLane::Began(ucs_status_ptr_t handle, Request* request) {
  if (!UCS_PTR_IS_PTR(handle)) Complete(request, UCS_PTR_RAW_STATUS(handle));
}

void UcxLane::Complete(Request* request, ucs_status_t status) {
  request->owner->erase(request);
  request->done(status == UCS_OK ? absl::OkStatus() : UcxError("transfer", status));
  delete request;
}

void UcxLane::OnSent(void* handle, ucs_status_t status, void* argument) {
  Complete(static_cast<Request*>(argument), status);
  ucp_request_free(handle);
}

void UcxLane::OnReceived(void* handle, ucs_status_t status, size_t, void* argument) {
  OnSent(handle, status, argument);
}

}  // namespace lynx
