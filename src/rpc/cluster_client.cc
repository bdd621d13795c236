// SPDX-License-Identifier: Apache-2.0
// A daemon that is lost in the middle of an answer, or that gives it up (it is draining, or finds
// no prefill daemon), is replaced by another one: the new request carries the tokens already
// emitted, and because a token depends on nothing but the tokens before it, its position and the
// seed, the text goes on exactly as it would have.
#include "rpc/cluster_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "lynx.grpc.pb.h"
#include "rpc/channel.h"
#include "rpc/convert.h"
#include "rpc/daemon_watch.h"
#include "spdlog/spdlog.h"

namespace lynx {
namespace {

using Sink = std::function<void(EngineOutput)>;

constexpr std::chrono::seconds kStopTimeout{2};

// Another daemon may do better: this one is lost or draining, or got no KV over its links.
bool OthersMayTake(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status);
}

// One Generate call to one daemon. Reports each output, then the end of the call.
class Call final : public grpc::ClientReadReactor<v1::GenerateReply> {
 public:
  Call(std::function<void(EngineOutput)> on_output, std::function<void(absl::Status)> on_end)
      : on_output_(std::move(on_output)), on_end_(std::move(on_end)) {}

  void Start(v1::Decode::Stub& stub, v1::GenerateRequest request) {
    request_ = std::move(request);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&reply_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    on_output_(FromProto(reply_));
    StartRead(&reply_);
  }

  void OnDone(const grpc::Status& status) override {
    auto on_end = std::move(on_end_);
    on_end(ToStatus(status));  // may destroy this
  }

 private:
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateReply reply_;
  std::function<void(EngineOutput)> on_output_;
  std::function<void(absl::Status)> on_end_;
};

class ClusterClientImpl final : public ClusterClient {
 public:
  explicit ClusterClientImpl(const ClusterClientOptions& options)
      : options_(options), open_(options.decode_addresses.size()) {
    decode_ = DaemonWatch::Create(options.decode_addresses, /*with_stats=*/true, nullptr);
    prefill_ = DaemonWatch::Create(options.prefill_addresses, /*with_stats=*/true, nullptr);
    for (size_t i = 0; i < decode_->size(); ++i) {
      stubs_.push_back(v1::Decode::NewStub(decode_->channel(i)));
    }
  }

  // Generations are gone by now (they are the caller's), but their calls may still be ending.
  ~ClusterClientImpl() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return num_calls_ == 0; });
  }

  bool ready() const override {
    for (size_t i = 0; i < decode_->size(); ++i) {
      const WatchedDaemon d = decode_->Get(i);
      if (d.reachable && d.info.ready()) return true;
    }
    return false;
  }

  std::vector<DaemonState> daemons() const override {
    std::vector<DaemonState> states;
    for (const DaemonWatch* watch : {decode_.get(), prefill_.get()}) {
      for (size_t i = 0; i < watch->size(); ++i) {
        const WatchedDaemon d = watch->Get(i);
        DaemonState state;
        state.role = watch == prefill_.get() ? "prefill"
                     : d.info.role().empty() ? "decode"
                                             : d.info.role();
        state.name = d.info.name().empty() ? d.address : d.info.name();
        state.address = d.address;
        state.healthy = d.reachable && d.info.ready();
        state.stuck = d.reachable && d.stats.stuck();
        state.detail = d.reachable ? d.info.detail() : d.error;
        state.stats = FromProto(d.stats);
        state.block_size = static_cast<int>(d.info.block_size());
        state.max_model_len = static_cast<int>(d.info.max_model_len());
        state.kv_dtype = d.info.kv_dtype();
        state.kv_resident = d.info.kv_resident();
        state.codec = d.info.codec();
        states.push_back(std::move(state));
      }
    }
    return states;
  }

  std::unique_ptr<Generation> Generate(Request request, Sink sink) override {
    auto task = std::make_shared<Task>(*this, std::move(request), std::move(sink));
    task->Try();
    return std::make_unique<Handle>(std::move(task));
  }

 private:
  // One request over all its tries. Shared by the caller's handle and by the call under way.
  class Task : public std::enable_shared_from_this<Task> {
   public:
    Task(ClusterClientImpl& client, Request request, Sink sink)
        : client_(client), request_(std::move(request)), sink_(std::move(sink)) {}

    void Try() {
      const auto index = client_.Choose(tried_);
      if (!index) {
        Fail(last_failure_.ok() ? absl::UnavailableError("no decode daemon is ready")
                                : last_failure_);
        return;
      }
      tried_.insert(*index);
      auto self = shared_from_this();
      auto call = std::make_shared<Call>(
          [self](EngineOutput output) { self->OnOutput(std::move(output)); },
          [self, index = *index](absl::Status status) { self->OnEnd(index, std::move(status)); });
      bool is_over;
      {
        std::lock_guard lock(mutex_);
        is_over = cancelled_ || stopped_;
        if (!is_over) call_ = call;
        call_index_ = *index;
      }
      if (is_over) {
        client_.Release(*index);
        Fail(absl::CancelledError("stopped by the caller"));
        return;
      }
      call->Start(*client_.stubs_[*index], ToProto(request_));
    }

    void Stop() {
      size_t index;
      {
        std::lock_guard lock(mutex_);
        stopped_ = true;
        if (!call_) return;
        index = call_index_;
      }
      client_.SendStop(index, request_.id);
    }

    void Cancel() {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
      if (call_) call_->Cancel();
    }

   private:
    bool cancelled() {
      std::lock_guard lock(mutex_);
      return cancelled_;
    }
    bool stopped() {
      std::lock_guard lock(mutex_);
      return stopped_;
    }

    void OnOutput(EngineOutput output) {
      for (const TokenOutput& token : output.tokens) request_.emitted_ids.push_back(token.id);
      NoteDrafts(output);
      if (OthersMayTake(output.error)) {
        // It gives the request up: OnEnd will see.
        given_up_ = std::exchange(output.error, absl::OkStatus());
        output.finish_reason = FinishReason::kNone;
      }
      finished_ = output.finished();
      if (!cancelled()) sink_(std::move(output));
    }

    // Keeps shown_drafts_ as the client has them: final tokens take the place of equal drafts, what
    // is revoked are the last ones.
    void NoteDrafts(const EngineOutput& output) {
      for (const TokenOutput& token : output.tokens) {
        if (shown_drafts_.empty() || shown_drafts_.front() != token.id) break;
        shown_drafts_.pop_front();
      }
      const auto num_revoked = static_cast<size_t>(std::max(0, output.num_revoked_drafts));
      shown_drafts_.resize(shown_drafts_.size() - std::min(num_revoked, shown_drafts_.size()));
      shown_drafts_.insert(shown_drafts_.end(), output.drafts.begin(), output.drafts.end());
    }

    // The daemon that made them is gone; the next one does not know of them.
    void RevokeDrafts() {
      if (shown_drafts_.empty() || cancelled()) return;
      EngineOutput output;
      output.num_revoked_drafts = static_cast<int>(shown_drafts_.size());
      shown_drafts_.clear();
      sink_(std::move(output));
    }

    void OnEnd(size_t index, absl::Status status) {
      {
        // The call ends here, and with it its hold on the channel: before Release, after which the
        // client may go, since the last channel must not end on a thread of gRPC's own.
        std::lock_guard lock(mutex_);
        call_ = nullptr;
      }
      if (!finished_ && !cancelled()) {
        if (absl::IsUnavailable(status)) {
          client_.decode_->MarkFailed(index, std::string(status.message()));
        }
        if (status.ok()) status = absl::UnavailableError("the call ended without an answer");
        last_failure_ = absl::AbortedError("a decode daemon was lost in the middle of the request");
        if (!given_up_.ok()) {
          last_failure_ = status = std::exchange(given_up_, absl::OkStatus());
        }
        GoOnElsewhere(index, status);
      }
      client_.Release(index);
    }

    void GoOnElsewhere(size_t index, const absl::Status& status) {
      const std::string address = client_.options_.decode_addresses[index];
      spdlog::warn("request {}: decode daemon {}: {}", request_.id, address,
                   std::string(status.message()));
      if (!OthersMayTake(status) || stopped()) {
        Fail(status);
      } else if (num_retries_++ < client_.options_.max_retries) {
        RevokeDrafts();
        Try();
      } else {
        Fail(last_failure_);
      }
    }

    void Fail(absl::Status status) {
      finished_ = true;
      if (cancelled()) return;
      EngineOutput output;
      output.error = std::move(status);
      sink_(std::move(output));
    }

    ClusterClientImpl& client_;
    Request request_;
    Sink sink_;
    std::deque<TokenId> shown_drafts_;  // and neither final nor revoked
    std::set<size_t> tried_;
    absl::Status last_failure_;  // what the caller hears when nobody else takes the request
    absl::Status given_up_;      // what the daemon of the current call has said of it
    int num_retries_ = 0;
    bool finished_ = false;
    std::mutex mutex_;
    bool cancelled_ = false;
    bool stopped_ = false;  // no other daemon goes on with it
    std::shared_ptr<Call> call_;
    size_t call_index_ = 0;  // its daemon
  };

  class Handle final : public Generation {
   public:
    explicit Handle(std::shared_ptr<Task> task) : task_(std::move(task)) {}
    ~Handle() override { task_->Cancel(); }
    void Stop() override { task_->Stop(); }

   private:
    std::shared_ptr<Task> task_;
  };

  // The ready daemon with the fewest open requests that was not tried yet.
  std::optional<size_t> Choose(const std::set<size_t>& tried) {
    std::lock_guard lock(mutex_);
    std::optional<size_t> best;
    for (size_t k = 0; k < decode_->size(); ++k) {
      const size_t i = (next_ + k) % decode_->size();
      if (tried.count(i) > 0) continue;
      const WatchedDaemon d = decode_->Get(i);
      if (!d.reachable || !d.info.ready()) continue;
      if (!best || open_[i] < open_[*best]) best = i;
    }
    if (best) {
      ++open_[*best];
      ++num_calls_;
      next_ = *best + 1;
    }
    return best;
  }

  // Best effort: without it the request ends by itself, or with its handle.
  void SendStop(size_t index, const std::string& id) {
    struct StopCall {
      std::optional<grpc::ClientContext> context{std::in_place};
      v1::StopRequest request;
      v1::StopReply reply;
    };
    auto call = std::make_shared<StopCall>();
    call->request.set_id(id);
    call->context->set_deadline(std::chrono::system_clock::now() + kStopTimeout);
    {
      std::lock_guard lock(mutex_);
      ++open_[index];
      ++num_calls_;
    }
    stubs_[index]->async()->Stop(&*call->context, &call->request, &call->reply,
                                 [this, call, index](const grpc::Status&) {
                                   call->context.reset();  // as in OnEnd
                                   Release(index);
                                 });
  }

  void Release(size_t index) {
    std::lock_guard lock(mutex_);
    --open_[index];
    --num_calls_;
    ended_.notify_all();
  }

  const ClusterClientOptions options_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<int> open_;
  int num_calls_ = 0;
  size_t next_ = 0;
  std::unique_ptr<DaemonWatch> decode_;
  std::unique_ptr<DaemonWatch> prefill_;
  std::vector<std::unique_ptr<v1::Decode::Stub>> stubs_;
};

}  // namespace

std::unique_ptr<ClusterClient> ClusterClient::Create(const ClusterClientOptions& options) {
  return std::make_unique<ClusterClientImpl>(options);
}

}  // namespace lynx
