// SPDX-License-Identifier: Apache-2.0
#include "rpc/prefill_client.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "lynx.grpc.pb.h"
#include "rpc/attempt_router.h"
#include "rpc/channel.h"
#include "rpc/convert.h"
#include "rpc/daemon_info.h"
#include "rpc/daemon_watch.h"
#include "spdlog/spdlog.h"

namespace lynx {
namespace {

using Sink = std::function<void(RemotePrefillEvent)>;

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr int kNowhere = -1;  // what Start answers without a daemon

// One attempt's call. Lives until gRPC's OnDone; `sink` is dropped by Cancel and by the last event.
// Verify and Landed write from outside gRPC's reactions, so the call is held open (AddHold) until
// it has landed, or can no more.
class AttemptCall final : public grpc::ClientBidiReactor<v1::PrefillCommand, v1::PrefillReply> {
 public:
  AttemptCall(v1::Prefill::Stub& stub, v1::PrefillCommand start, AttemptId attempt, Sink sink,
              std::function<void(const absl::Status&)> on_done)
      : attempt_(attempt), sink_(std::move(sink)), on_done_(std::move(on_done)) {
    stub.async()->Prefill(&context_, this);
    AddHold();
    writes_.push_back(std::move(start));
    StartWrite(&writes_.front());
    StartRead(&reply_);
  }

  void Begin() { StartCall(); }

  // No sink call is under way or will follow when this returns.
  void Cancel() {
    std::lock_guard lock(mutex_);
    sink_ = nullptr;
    context_.TryCancel();
    LetGo();
  }

  void Verify(const VerifyRequest& request) {
    v1::PrefillCommand command;
    *command.mutable_verify() = ToProto(request);
    std::lock_guard lock(mutex_);
    if (held_) Write(std::move(command));
  }

  void Landed() {
    v1::PrefillCommand landed;
    landed.set_landed(true);
    std::lock_guard lock(mutex_);
    sink_ = nullptr;
    if (!held_) return;
    closing_ = true;
    Write(std::move(landed));
    LetGo();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!writes_.empty()) writes_.pop_front();
    if (!ok) writes_.clear();
    if (!writes_.empty()) {
      StartWrite(&writes_.front());
    } else if (closing_ && !half_closed_ && ok) {
      half_closed_ = true;
      StartWritesDone();
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      LetGo();
      return;
    }
    Deliver(FromProto(reply_, attempt_));
    StartRead(&reply_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status error = ToStatus(status);
    if (error.ok()) error = absl::UnavailableError("the prefill daemon closed the attempt");
    RemotePrefillEvent event;
    event.attempt = attempt_;
    event.error = error;
    Deliver(event);
    auto on_done = std::move(on_done_);
    const absl::Status result = ToStatus(status);
    on_done(result);  // deletes this
  }

 private:
  void Deliver(RemotePrefillEvent event) {
    std::lock_guard lock(mutex_);
    if (!sink_) return;
    const bool last = !event.error.ok();
    sink_(std::move(event));
    if (last) sink_ = nullptr;
  }

  // Needs mutex_, and the call to be held.
  void Write(v1::PrefillCommand command) {
    writes_.push_back(std::move(command));
    if (writes_.size() == 1) StartWrite(&writes_.front());
  }

  // After this nothing is started from outside reactions. Needs mutex_.
  void LetGo() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  const AttemptId attempt_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  Sink sink_;
  std::deque<v1::PrefillCommand> writes_;  // front is being written
  v1::PrefillReply reply_;
  bool held_ = true;
  bool closing_ = false;
  bool half_closed_ = false;
  std::function<void(const absl::Status&)> on_done_;
};

class PrefillClientImpl final : public PrefillClient {
 public:
  PrefillClientImpl(std::vector<std::string> addresses, v1::DaemonInfo here)
      : here_(std::move(here)), router_(addresses.size()) {
    watch_ = DaemonWatch::Create(std::move(addresses), /*with_stats=*/false,
                                 [this](const WatchedDaemon& d) { LogDisagreement(d); });
    for (size_t i = 0; i < watch_->size(); ++i) {
      stubs_.push_back(v1::Prefill::NewStub(watch_->channel(i)));
    }
  }

  ~PrefillClientImpl() override {
    std::unique_lock lock(mutex_);
    for (auto& [attempt, call] : calls_) call->Cancel();
    ended_.wait(lock, [&] { return calls_.empty(); });
  }

  bool available() const override { return unavailable_reason().empty(); }

  std::string unavailable_reason() const override {
    std::string reason;
    for (size_t i = 0; i < watch_->size(); ++i) {
      const WatchedDaemon daemon = watch_->Get(i);
      const std::string why = WhyNot(daemon);
      if (why.empty()) return "";
      absl::StrAppend(&reason, reason.empty() ? "" : "; ", daemon.address, ": ", why);
    }
    return reason;
  }

  int Start(const RemotePrefillRequest& request, Sink sink) override {
    const std::vector<PrefillDaemon> now = Daemons();
    std::unique_lock lock(mutex_);
    const std::optional<size_t> chosen =
        router_.Open(request.attempt, now, request.failed_at, MonotonicNs());
    if (!chosen) {
      lock.unlock();
      RemotePrefillEvent event;
      event.attempt = request.attempt;
      event.error = absl::UnavailableError(
          absl::StrCat("no prefill daemon is usable: ", unavailable_reason()));
      sink(std::move(event));
      return kNowhere;
    }
    const size_t index = *chosen;
    v1::PrefillCommand start;
    *start.mutable_start() = ToProto(request);
    start.mutable_start()->set_expected_epoch(now[index].epoch);
    auto owned = std::make_unique<AttemptCall>(
        *stubs_[index], std::move(start), request.attempt, std::move(sink),
        [this, index, attempt = request.attempt](const absl::Status& status) {
          Ended(index, attempt, status);
        });
    AttemptCall* const call = owned.get();
    calls_[request.attempt] = std::move(owned);
    lock.unlock();
    call->Begin();
    return static_cast<int>(index);
  }

  void Verify(const VerifyRequest& request) override {
    std::lock_guard lock(mutex_);
    const auto it = calls_.find(request.attempt);
    if (it != calls_.end()) it->second->Verify(request);
  }

  void Cancel(AttemptId attempt) override {
    std::lock_guard lock(mutex_);
    router_.Dropped(attempt);
    if (const auto it = calls_.find(attempt); it != calls_.end()) it->second->Cancel();
  }

  void Failed(AttemptId attempt, const absl::Status& why) override {
    std::lock_guard lock(mutex_);
    const auto ejection = router_.Failed(attempt, MonotonicNs());
    if (!ejection) return;
    spdlog::warn(
        "prefill daemon {} is passed over for {} s where there is another: a hand-off failed: {}",
        watch_->Get(ejection->index).address, ejection->backoff_ns / kNsPerSecond, why.ToString());
  }

  void Landed(AttemptId attempt) override {
    std::lock_guard lock(mutex_);
    if (const auto index = router_.Landed(attempt)) {
      spdlog::info("prefill daemon {} is as good as any again: a hand-off has landed",
                   watch_->Get(*index).address);
    }
    if (const auto it = calls_.find(attempt); it != calls_.end()) it->second->Landed();
  }

  RemotePrefillStats stats() const override {
    std::lock_guard lock(mutex_);
    return {.num_ejected = router_.num_ejected(), .num_ejections = router_.num_ejections()};
  }

 private:
  // "" when the daemon can be used.
  std::string WhyNot(const WatchedDaemon& daemon) const {
    if (!daemon.reachable) return daemon.error.empty() ? "not connected yet" : daemon.error;
    if (!daemon.info.ready()) {
      return daemon.info.detail().empty() ? "not ready" : daemon.info.detail();
    }
    return Disagreement(here_, daemon.info);
  }

  std::vector<PrefillDaemon> Daemons() const {
    std::vector<PrefillDaemon> daemons;
    for (size_t i = 0; i < watch_->size(); ++i) {
      const WatchedDaemon daemon = watch_->Get(i);
      daemons.push_back({.usable = WhyNot(daemon).empty(), .epoch = daemon.info.epoch()});
    }
    return daemons;
  }

  void Ended(size_t index, AttemptId attempt, const absl::Status& status) {
    if (absl::IsUnavailable(status)) watch_->MarkFailed(index, std::string(status.message()));
    std::lock_guard lock(mutex_);
    router_.Close(index);
    calls_.erase(attempt);
    ended_.notify_all();
  }

  void LogDisagreement(const WatchedDaemon& daemon) {
    if (!daemon.reachable || !daemon.info.ready()) return;
    const std::string difference = Disagreement(here_, daemon.info);
    std::lock_guard lock(log_mutex_);
    std::string& last = logged_[daemon.address];
    if (last == difference) return;
    last = difference;
    if (!difference.empty()) {
      spdlog::error("prefill daemon {} is refused: {}", daemon.address, difference);
    }
  }

  const v1::DaemonInfo here_;
  std::mutex log_mutex_;
  std::map<std::string, std::string> logged_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  AttemptRouter router_;
  std::map<AttemptId, std::unique_ptr<AttemptCall>> calls_;
  std::vector<std::unique_ptr<v1::Prefill::Stub>> stubs_;
  std::unique_ptr<DaemonWatch> watch_;
};

}  // namespace

std::unique_ptr<PrefillClient> PrefillClient::Create(std::vector<std::string> addresses,
                                                     v1::DaemonInfo here) {
  return std::make_unique<PrefillClientImpl>(std::move(addresses), std::move(here));
}

}  // namespace lynx
