// SPDX-License-Identifier: Apache-2.0
#include "app/daemon.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "app/anchor_table.h"
#include "app/build_engine.h"
#include "app/stop_signals.h"
#include "codec/kv_page_codec.h"
#include "core/log.h"
#include "engine/anchor_options.h"
#include "lynx/codec.h"
#include "lynx/plane_format.h"
#include "lynx/transport.h"
#include "model/model.h"
#include "rpc/daemon_info.h"
#include "rpc/daemon_server.h"
#include "rpc/prefill_client.h"
#include "spdlog/spdlog.h"
#include "xxhash.h"

namespace lynx {
namespace {

const char* RoleName(Role role) {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kColocated:
      return "colocated";
  }
  return "";
}

// What Info answers; written by the start-up and read by gRPC's threads.
class InfoBoard {
 public:
  explicit InfoBoard(v1::DaemonInfo info) : info_(std::move(info)) {}

  void Loading(std::string detail) {
    std::lock_guard lock(mutex_);
    info_.set_detail(std::move(detail));
  }
  void Serving(v1::DaemonInfo info) {
    std::lock_guard lock(mutex_);
    info_ = std::move(info);
    serving_ = true;
  }
  void Draining() {
    std::lock_guard lock(mutex_);
    serving_ = false;
    info_.set_ready(false);
    info_.set_detail("draining");
  }
  // peers_missing: why the daemon cannot serve although it is up, or "".
  v1::DaemonInfo Get(const std::string& peers_missing) const {
    std::lock_guard lock(mutex_);
    v1::DaemonInfo info = info_;
    if (serving_) {
      info.set_ready(peers_missing.empty());
      info.set_detail(peers_missing);
    }
    return info;
  }

 private:
  mutable std::mutex mutex_;
  v1::DaemonInfo info_;
  bool serving_ = false;
};

uint64_t HashOf(const SendPlan& plan) {
  uint64_t hash = 0;
  for (const auto& stage : plan.plane_end) {
    hash = XXH64(stage.data(), stage.size() * sizeof(stage[0]), hash);
  }
  return hash;
}

std::string ListenAddress(const DaemonOptions& options, const std::string& url) {
  if (!options.listen_address.empty()) return options.listen_address;
  const std::string host = url.substr(0, url.rfind(':'));
  const bool loopback = host == "localhost" || host.rfind("127.", 0) == 0 || host == "[::1]";
  return loopback ? url : absl::StrCat("0.0.0.0", url.substr(url.rfind(':')));
}

Resident ResidentOf(const ClusterConfig& config) {
  if (config.kv.resident == "8bit") return Resident::k8Bit;
  return config.kv.resident == "exact" ? Resident::kExact : Resident::kBf16;
}

EngineOptions MakeEngineOptions(const DaemonOptions& options, const RoleConfig& role,
                                int max_model_len, int num_kv_blocks) {
  const ClusterConfig& config = options.config;
  EngineOptions engine;
  engine.role = options.role;
  engine.max_num_seqs = role.max_num_seqs;
  engine.max_num_batched_tokens = role.max_num_batched_tokens;
  engine.max_model_len = max_model_len;
  engine.num_kv_blocks = num_kv_blocks;
  engine.max_waiting = role.max_queue_size;
  engine.queue_timeout_s = config.scheduler.queue_timeout_s;
  engine.itl_target_ms = config.scheduler.itl_target_ms;
  engine.fair_share = config.scheduler.fair_share;
  engine.enable_prefix_caching = role.enable_block_reuse;
  engine.resident = ResidentOf(config);
  engine.retry_backoff_ms = 300;
  engine.speculation = config.speculation.enabled;
  engine.max_draft_tokens = config.speculation.max_draft_tokens;
  engine.min_draft_survival = config.speculation.min_draft_survival;
  engine.verify = VerifyModeOf(config.speculation.verify).value_or(VerifyMode::kResidual);
  if (const std::string& number = config.speculation.num_speculative_tokens; number != "auto") {
    engine.num_speculative_tokens = std::stoi(number);
  }
  engine.draft_context_tokens = config.speculation.draft_context;
  engine.max_local_prefill_length = config.conditional_disagg.max_local_prefill_length;
  return engine;
}

std::function<void(const LoadProgress&)> ReportTo(InfoBoard& board) {
  return [&board, reported = -1](const LoadProgress& progress) mutable {
    const int percent = progress.bytes_total == 0
                            ? 100
                            : static_cast<int>(100 * progress.bytes_done / progress.bytes_total);
    if (percent / 20 == reported / 20 && reported >= 0) return;
    reported = percent;
    board.Loading(absl::StrCat("loading weights ", percent, " %"));
    spdlog::info("loading weights: {} % of {:.0f} MB", percent, progress.bytes_total / 1e6);
  };
}

// KV of another degree is handed over bit for bit, but it is not what this side would have computed
// (docs/numerics.md).
bool HasOneDegree(const DaemonOptions& options) {
  const int prefill = options.config.context.tensor_parallel_size;
  const int decode = options.config.generation.tensor_parallel_size;
  if (options.role != Role::kDecode || prefill == decode) return true;
  spdlog::warn(
      "tensor_parallel_size: prefill {}, decode {}: answers are reproducible, but not bit for bit "
      "those of one degree; speculation.verify is residual, and received KV enters no prefix cache",
      prefill, decode);
  return false;
}

void LogCapacity(Resident resident, bool caches, int num_blocks, const KvLayout& layout) {
  constexpr double kGiB = 1 << 30;
  spdlog::info(
      "KV pool: {} blocks of {} tokens, {:.0f} MB; {} tokens of context, {:.0f} in a GiB{}",
      num_blocks, kBlockSize, num_blocks * layout.block_bytes() / 1e6, num_blocks * kBlockSize,
      kGiB * kBlockSize / layout.block_bytes(),
      caches && resident != Resident::kBf16 ? "; the prefix cache packs what nobody uses" : "");
  if (resident != Resident::k8Bit) return;
  spdlog::warn(
      "kv.resident: 8bit: what the prefix cache gives back may be KV in 8 bits: answers may depend "
      "on what it holds; speculation.verify is residual");
}

// The parts of a daemon in the order of their construction; destroyed in reverse.
struct Daemon {
  Backends backends;  // by rank
  std::unique_ptr<Model> model;
  std::unique_ptr<Codec> codec;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<PrefillClient> prefill;
  std::unique_ptr<Engine> engine;
};

absl::Status AddHandoff(const DaemonOptions& options, const SendPlan& plan, v1::DaemonInfo* info,
                        Daemon* daemon, Engine::Peers* peers) {
  const auto& t = options.config.transceiver;
  LYNX_RETURN_IF_ERROR(
      KvPageCodec::Create(*daemon->codec, plan, daemon->model->kv_layout()).status());
  Transport& transport = *daemon->transport;
  const Codec& codec = *daemon->codec;
  info->set_transport_address(transport.address());
  if (options.role == Role::kPrefill) {
    const int lease_ms = t.kv_lease_duration_s * 1000;
    const KvSender::Options sender{.lease_ms = lease_ms,
                                   .announce_ms = std::min(1000, lease_ms / 4)};
    peers->make_sender = [=, &codec, &transport](KvPoolView pool, std::function<void()> wake) {
      return KvSender::Create(sender, codec, plan, pool, transport, std::move(wake));
    };
    return absl::OkStatus();
  }
  const KvReceiver::Options receiver{.window_bytes = static_cast<size_t>(t.max_inflight_bytes),
                                     .adapt_window = t.adapt_window,
                                     .transfer_timeout_ms = t.kv_transfer_timeout_ms};
  peers->make_receiver = [=, &codec, &transport](KvPoolView pool, std::function<void()> wake) {
    return KvReceiver::Create(receiver, codec, plan, pool, transport, std::move(wake));
  };
  peers->receiver_address = transport.address();
  daemon->prefill = PrefillClient::Create(options.config.context.urls, *info);
  peers->remote = daemon->prefill.get();
  return absl::OkStatus();
}

absl::Status Build(const DaemonOptions& options, const RoleConfig& role, InfoBoard& board,
                   v1::DaemonInfo* info, Daemon* daemon) {
  const ClusterConfig& config = options.config;
  LYNX_ASSIGN_OR_RETURN(daemon->backends, MakeBackends(config, role));
  const Backend& backend = *daemon->backends[0];
  spdlog::info("back-end {} ({}), {} x {} threads, compute {}", backend.name(), backend.target(),
               daemon->backends.size(), backend.num_threads(), config.compute);
  LYNX_ASSIGN_OR_RETURN(daemon->model, LoadModel(config, daemon->backends, role, ReportTo(board)));
  const ModelConfig& model = daemon->model->config();
  const KvLayout layout = daemon->model->kv_layout();
  const int max_model_len = config.max_model_len == 0
                                ? model.max_model_len
                                : std::min(config.max_model_len, model.max_model_len);
  LYNX_ASSIGN_OR_RETURN(daemon->codec, MakeCodec(config.kv.codec, backend));
  const SendPlan plan =
      DefaultSendPlan(*daemon->codec, model.num_layers, config.kv.target == "exact");
  AnchorOptions anchors;
  if (options.role == Role::kDecode && config.kv.codec == "planes") {
    LYNX_ASSIGN_OR_RETURN(const auto table,
                          FindAnchorTable(config, daemon->model->hash(), model.num_layers));
    LYNX_ASSIGN_OR_RETURN(anchors, MakeAnchorOptions(config.kv.anchor, table, plan, layout));
  }
  // Before the KV pool: chunks in device memory take their part of it.
  if (options.role != Role::kColocated) {
    LYNX_ASSIGN_OR_RETURN(daemon->transport, MakeTransport(config, daemon->codec->device_chunks()));
  }
  const int64_t kv_memory = role.kv_memory != 0
                                ? role.kv_memory
                                : DefaultKvMemory(daemon->backends, role, layout, max_model_len);
  LYNX_ASSIGN_OR_RETURN(const int num_blocks, NumKvBlocks(kv_memory, layout));
  LogCapacity(ResidentOf(config), role.enable_block_reuse, num_blocks, layout);

  info->set_protocol_version(kProtocolVersion);
  info->set_plane_format_version(kPlaneFormatVersion);
  info->set_model_hash(daemon->model->hash());
  info->set_backend(backend.name());
  info->set_compute(config.compute);
  info->set_kv_dtype(layout.dtype == KvDtype::kBf16 ? "bf16" : "f32");
  info->set_num_layers(layout.num_layers);
  info->set_num_kv_heads(layout.num_kv_heads);
  info->set_head_dim(layout.head_dim);
  info->set_block_size(kBlockSize);
  info->set_codec(config.kv.codec);
  info->set_kv_resident(config.kv.resident);
  info->set_send_plan_hash(HashOf(plan));
  info->set_model_name(model.name);
  info->set_vocab_size(model.vocab_size);
  info->set_max_model_len(
      static_cast<uint32_t>(std::min<int64_t>(max_model_len, int64_t{num_blocks} * kBlockSize)));
  info->set_prefill_tensor_parallel_size(config.context.tensor_parallel_size);
  info->set_decode_tensor_parallel_size(config.generation.tensor_parallel_size);

  Engine::Peers peers;
  if (options.role != Role::kColocated) {
    LYNX_RETURN_IF_ERROR(AddHandoff(options, plan, info, daemon, &peers));
    info->set_epoch(daemon->transport->epoch());
  }
  EngineOptions engine = MakeEngineOptions(options, role, max_model_len, num_blocks);
  engine.exact_handoff =
      daemon->codec->lossless() && config.kv.target == "exact" && HasOneDegree(options);
  engine.anchors = std::move(anchors);
  LYNX_ASSIGN_OR_RETURN(daemon->engine, Engine::Create(engine, *daemon->model, std::move(peers)));
  return absl::OkStatus();
}

// Runs a function after a time unless it is destroyed before.
class Deadline {
 public:
  Deadline(int seconds, std::function<void()> expired)
      : thread_([this, seconds, expired = std::move(expired)] {
          std::unique_lock lock(mutex_);
          if (!over_.wait_for(lock, std::chrono::seconds(seconds), [&] { return done_; })) {
            expired();
          }
        }) {}
  ~Deadline() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

v1::DaemonInfo StartingInfo(const std::string& name, Role role) {
  v1::DaemonInfo info;
  info.set_name(name);
  info.set_role(RoleName(role));
  info.set_version(LYNX_VERSION);
  info.set_detail("starting");
  return info;
}

// What a prefill daemon has encoded lives until it is pulled, which is up to 11/16 of a prompt's
// KV. By itself malloc would give it back to the kernel after each hand-off, and to fault it in
// again takes as long as to encode it.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 4 << 20);
  mallopt(M_TRIM_THRESHOLD, 128 << 20);
}

}  // namespace

absl::Status RunDaemon(const DaemonOptions& options) {
  const bool is_prefill = options.role == Role::kPrefill;
  const RoleConfig& role = is_prefill ? options.config.context : options.config.generation;
  const std::string name = absl::StrCat(is_prefill ? "prefill" : "decode", options.index);
  LYNX_RETURN_IF_ERROR(InitLog(name, options.config.log_level));
  if (is_prefill) KeepFreedMemory();

  StopSignals signals;
  std::atomic<Engine*> serving = nullptr;
  std::unique_ptr<Deadline> deadline;
  InfoBoard board(StartingInfo(name, options.role));
  signals.OnStop([&](int count) {
    Engine* engine = serving;
    if (engine == nullptr) std::_Exit(0);  // still loading: nothing was accepted
    spdlog::info(count == 1 ? "stopping: letting running requests finish" : "stopping now");
    board.Draining();
    engine->Stop(/*drain=*/count == 1);
    if (count == 1) {
      deadline = std::make_unique<Deadline>(options.config.shutdown_timeout_s,
                                            [=] { engine->Stop(/*drain=*/false); });
    }
  });

  Daemon daemon;
  std::atomic<PrefillClient*> prefill = nullptr;
  const auto peers_missing = [&prefill] {
    const PrefillClient* client = prefill;
    return client == nullptr ? "" : client->unavailable_reason();
  };
  LYNX_ASSIGN_OR_RETURN(
      auto server,
      DaemonServer::Create(ListenAddress(options, role.urls[options.index]),
                           options.config.watchdog_s, [&] { return board.Get(peers_missing()); }));
  v1::DaemonInfo info = StartingInfo(name, options.role);
  LYNX_RETURN_IF_ERROR(Build(options, role, board, &info, &daemon));
  prefill = daemon.prefill.get();
  server->Serve(daemon.engine.get(), daemon.model->config().vocab_size);
  board.Serving(info);
  serving = daemon.engine.get();
  spdlog::info("serving on {}", role.urls[options.index]);

  daemon.engine->Run();
  signals.End();
  deadline.reset();
  server.reset();
  spdlog::info("stopped");
  return absl::OkStatus();
}

}  // namespace lynx
