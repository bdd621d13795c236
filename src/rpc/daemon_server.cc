// SPDX-License-Identifier: Apache-2.0
#include "rpc/daemon_server.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "core/clock.h"
#include "grpcpp/grpcpp.h"
#include "lynx.grpc.pb.h"
#include "rpc/channel.h"
#include "rpc/convert.h"

namespace lynx {
namespace {

// The engine behind the services; null until the weights are loaded.
struct Backing {
  std::atomic<Engine*> engine = nullptr;
  std::atomic<int> vocab_size = 0;
  int watchdog_s = 30;
};

class DaemonService final : public v1::Daemon::CallbackService {
 public:
  DaemonService(const Backing& backing, std::function<v1::DaemonInfo()> info)
      : backing_(backing), info_(std::move(info)) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::DaemonInfo* reply) override {
    *reply = info_();
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const v1::StatsRequest*,
                                  v1::StatsReply* reply) override {
    if (const Engine* engine = backing_.engine) {
      const EngineStats stats = engine->stats();
      *reply = ToProto(stats);
      const int64_t idle_ns = MonotonicNs() - stats.last_progress_ns;
      reply->set_stuck(idle_ns > int64_t{backing_.watchdog_s} * 1'000'000'000);
    }
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const Backing& backing_;
  std::function<v1::DaemonInfo()> info_;
};

// One Generate call. The engine calls the sink until the output that has finished(), and only then
// does the call finish. gRPC may report the end while that sink call still holds the mutex.
class GenerateCall final : public grpc::ServerWriteReactor<v1::GenerateReply> {
 public:
  GenerateCall(Engine& engine, const Request& request, std::function<void()> on_done)
      : engine_(engine), id_(request.id), on_done_(std::move(on_done)) {
    engine_.Submit(request, [this](EngineOutput output) { Push(output); });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) broken_ = true;
    queue_.pop_front();
    Next();
  }
  void OnCancel() override { engine_.Cancel(id_); }
  void OnDone() override {
    { std::lock_guard wait_for_push(mutex_); }
    on_done_();
    delete this;
  }

 private:
  void Push(const EngineOutput& output) {
    std::lock_guard lock(mutex_);
    queue_.push_back(ToProto(output));
    finished_ = output.finished();
    if (queue_.size() == 1) Next();
  }

  // Starts the next write or ends the call. Needs mutex_.
  void Next() {
    if (broken_) queue_.clear();
    if (!queue_.empty()) {
      StartWrite(&queue_.front());
    } else if (finished_) {
      Finish(grpc::Status::OK);
    }
  }

  Engine& engine_;
  const std::string id_;
  const std::function<void()> on_done_;
  std::mutex mutex_;
  std::deque<v1::GenerateReply> queue_;  // front is being written
  bool finished_ = false;
  bool broken_ = false;
};

class RefusedGenerate final : public grpc::ServerWriteReactor<v1::GenerateReply> {
 public:
  explicit RefusedGenerate(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

absl::Status Loading() { return absl::UnavailableError("loading the model"); }

class DecodeService final : public v1::Decode::CallbackService {
 public:
  explicit DecodeService(const Backing& backing) : backing_(backing) {}

  grpc::ServerWriteReactor<v1::GenerateReply>* Generate(
      grpc::CallbackServerContext*, const v1::GenerateRequest* message) override {
    Engine* engine = backing_.engine;
    if (engine == nullptr) return new RefusedGenerate(Loading());
    auto request = FromProto(*message, backing_.vocab_size);
    if (!request.ok()) return new RefusedGenerate(request.status());
    request->arrival_ns = MonotonicNs();
    // Clients choose ids; the engine's must differ among its running requests.
    absl::StrAppend(&request->id, "/", ++num_calls_);
    std::lock_guard lock(mutex_);
    const auto entry = engine_ids_.emplace(message->id(), request->id);
    return new GenerateCall(*engine, *request, [this, entry] {
      std::lock_guard lock(mutex_);
      engine_ids_.erase(entry);
    });
  }

  grpc::ServerUnaryReactor* Stop(grpc::CallbackServerContext* context,
                                 const v1::StopRequest* request, v1::StopReply*) override {
    std::vector<std::string> ids;
    {
      std::lock_guard lock(mutex_);
      const auto [begin, end] = engine_ids_.equal_range(request->id());
      for (auto it = begin; it != end; ++it) ids.push_back(it->second);
    }
    Engine* engine = backing_.engine;
    for (std::string& id : ids) engine->Cancel(std::move(id));
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const Backing& backing_;
  std::atomic<uint64_t> num_calls_ = 0;
  std::mutex mutex_;
  std::multimap<std::string, std::string> engine_ids_;  // of running calls, by the client's id
};

// One Prefill call. The engine may call the sink after the call has ended (the transfer outlives
// it), so the sink holds the shared state and the state knows whether the call still lives.
class PrefillCall final : public grpc::ServerBidiReactor<v1::PrefillCommand, v1::PrefillReply> {
 public:
  PrefillCall(const Backing& backing, const v1::DaemonInfo& info)
      : backing_(backing), epoch_(info.epoch()), state_(std::make_shared<State>()) {
    state_->call = this;
    StartRead(&command_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Abandon(absl::OkStatus());
      return;
    }
    if (command_.has_start() && !started_) {
      if (const absl::Status status = Begin(command_.start()); !status.ok()) {
        End(ToGrpc(status));
        return;
      }
    } else if (command_.has_verify() && started_) {
      auto request = FromProto(command_.verify(), attempt_, backing_.vocab_size);
      if (!request.ok()) {
        Abandon(request.status());
        return;
      }
      engine_->Verify(*std::move(request));
    } else if (command_.landed()) {
      landed_ = true;
    }
    StartRead(&command_);
  }

  void OnWriteDone(bool) override {
    std::lock_guard lock(state_->mutex);
    state_->queue.pop_front();
    Next();
  }

  void OnDone() override { delete this; }

 private:
  struct State {
    std::mutex mutex;
    PrefillCall* call = nullptr;         // null: the call has ended
    std::deque<v1::PrefillReply> queue;  // front is being written
  };

  absl::Status Begin(const v1::PrefillStart& start) {
    engine_ = backing_.engine;
    if (engine_ == nullptr) return Loading();
    if (start.expected_epoch() != epoch_) {
      return absl::UnavailableError("this daemon has restarted since the handshake");
    }
    auto request = FromProto(start, backing_.vocab_size);
    if (!request.ok()) return request.status();
    attempt_ = request->attempt;
    started_ = true;
    engine_->SubmitPrefill(*std::move(request),
                           [state = state_](RemotePrefillEvent event) { Push(*state, event); });
    return absl::OkStatus();
  }

  // Nothing more is wanted of the attempt, unless its KV has landed.
  void Abandon(const absl::Status& status) {
    if (started_ && !landed_) engine_->CancelPrefill(attempt_);
    End(ToGrpc(status));
  }

  static void Push(State& state, const RemotePrefillEvent& event) {
    std::lock_guard lock(state.mutex);
    if (state.call == nullptr) return;
    state.queue.push_back(ToProto(event));
    if (state.queue.size() == 1) state.call->Next();
  }

  // Needs state_->mutex.
  void Next() {
    if (!state_->queue.empty()) {
      StartWrite(&state_->queue.front());
    } else if (ending_) {
      state_->call = nullptr;
      Finish(end_status_);
    }
  }

  void End(grpc::Status status) {
    std::lock_guard lock(state_->mutex);
    ending_ = true;
    end_status_ = std::move(status);
    if (state_->queue.empty()) Next();
  }

  const Backing& backing_;
  const uint64_t epoch_;
  std::shared_ptr<State> state_;
  v1::PrefillCommand command_;
  Engine* engine_ = nullptr;
  AttemptId attempt_;
  bool started_ = false;
  bool landed_ = false;
  bool ending_ = false;
  grpc::Status end_status_;
};

class PrefillService final : public v1::Prefill::CallbackService {
 public:
  PrefillService(const Backing& backing, std::function<v1::DaemonInfo()> info)
      : backing_(backing), info_(std::move(info)) {}

  grpc::ServerBidiReactor<v1::PrefillCommand, v1::PrefillReply>* Prefill(
      grpc::CallbackServerContext*) override {
    return new PrefillCall(backing_, info_());
  }

 private:
  const Backing& backing_;
  std::function<v1::DaemonInfo()> info_;
};

class DaemonServerImpl final : public DaemonServer {
 public:
  DaemonServerImpl(int watchdog_s, std::function<v1::DaemonInfo()> info)
      : daemon_(backing_, info), decode_(backing_), prefill_(backing_, info) {
    backing_.watchdog_s = watchdog_s;
  }
  ~DaemonServerImpl() override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000);
    builder.SetMaxReceiveMessageSize(256 << 20);
    builder.RegisterService(&daemon_);
    builder.RegisterService(&decode_);
    builder.RegisterService(&prefill_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat(address, ": cannot listen there"));
    }
    return absl::OkStatus();
  }

  void Serve(Engine* engine, int vocab_size) override {
    backing_.vocab_size = vocab_size;
    backing_.engine = engine;
  }

 private:
  Backing backing_;
  DaemonService daemon_;
  DecodeService decode_;
  PrefillService prefill_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DaemonServer>> DaemonServer::Create(
    const std::string& listen_address, int watchdog_s, std::function<v1::DaemonInfo()> info) {
  auto server = std::make_unique<DaemonServerImpl>(watchdog_s, std::move(info));
  LYNX_RETURN_IF_ERROR(server->Listen(listen_address));
  return server;
}

}  // namespace lynx
