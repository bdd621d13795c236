// SPDX-License-Identifier: Apache-2.0
// The life of `lynx serve`:
//   1. the model file is opened and checked, so that a bad one is one line and no process
//   2. the cluster file is completed (free loopback ports, threads) and written to a run directory
//   3. gateway, prefill and decode daemons start as processes that read that file
//   4. their Info tells how far they are: one line per change
//   5. ready: where to point a client
//   6. a daemon that dies is started again; its peers find it under the same address
//   7. SIGTERM: the gateway drains first, then decode, then prefill; a second one does it now
#include "app/serve.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "app/build_engine.h"
#include "app/check_model.h"
#include "app/child_process.h"
#include "app/http_client.h"
#include "app/run_directory.h"
#include "app/stop_signals.h"
#include "core/log.h"
#include "rpc/daemon_watch.h"
#include "spdlog/spdlog.h"

namespace lynx {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kStartInterval = std::chrono::milliseconds(200);  // between questions for /ready
constexpr auto kReadyInterval = std::chrono::milliseconds(2000);
constexpr auto kHurry = std::chrono::milliseconds(3000);  // from the second signal to SIGKILL
constexpr auto kMaxBackoff = std::chrono::milliseconds(5000);

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

struct Child {
  std::string name;  // "prefill0"
  std::vector<std::string> arguments;
  int stop_order = 0;  // lower stops first
  pid_t pid = -1;      // -1: not running
  bool was_ready = false;
  int exit_status = 0;
  std::chrono::milliseconds backoff{200};
  Clock::time_point restart_at;
};

absl::Status FillUrls(RoleConfig* role) {
  if (!role->urls.empty()) return absl::OkStatus();
  for (int i = 0; i < role->num_instances; ++i) {
    LYNX_ASSIGN_OR_RETURN(const int port, FindFreePort());
    role->urls.push_back(absl::StrCat("127.0.0.1:", port));
  }
  return absl::OkStatus();
}

// Somebody else who listens there would be taken for this cluster's own process.
absl::Status CheckPortsAreFree(const ClusterConfig& config) {
  LYNX_RETURN_IF_ERROR(CheckCanListen(config.hostname, config.port));
  std::vector<std::string> urls = config.generation.urls;
  if (!config.colocated) {
    urls.insert(urls.end(), config.context.urls.begin(), config.context.urls.end());
  }
  for (const std::string& url : urls) {
    std::string host;
    int port = 0;
    LYNX_RETURN_IF_ERROR(ParseUrl(url, &host, &port));
    LYNX_RETURN_IF_ERROR(CheckCanListen(host, port));
  }
  return absl::OkStatus();
}

// The engines share the cores, where more threads than cores only make spinning workers wait, and
// the GPU's memory.
void ShareMachine(ClusterConfig* config) {
  const int engines =
      config->generation.num_instances + (config->colocated ? 0 : config->context.num_instances);
  for (RoleConfig* role : {&config->context, &config->generation}) {
    role->daemons_per_gpu = std::max(role->daemons_per_gpu, engines);
  }
  const int share = std::max(1, NumThreads(0) / std::max(1, engines));
  if (config->context.threads == 0) config->context.threads = share;
  if (config->generation.threads == 0) config->generation.threads = share;
}

class Supervisor {
 public:
  Supervisor(ClusterConfig config, std::string file)
      : config_(std::move(config)), file_(std::move(file)) {
    if (!config_.colocated) {
      for (int i = 0; i < config_.context.num_instances; ++i) AddDaemon("prefill", i, 2);
    }
    for (int i = 0; i < config_.generation.num_instances; ++i) AddDaemon("decode", i, 1);
    children_.push_back(
        {.name = "gateway", .arguments = {"gateway", "--config", file_, "--supervised"}});
  }

  absl::Status Run(StopSignals& signals) {
    signals.OnStop([this](int count) {
      std::lock_guard lock(mutex_);
      num_stops_ = count;
      changed_.notify_all();
    });
    for (Child& child : children_) LYNX_RETURN_IF_ERROR(Start(child));
    std::vector<std::string> addresses;
    if (!config_.colocated) addresses = config_.context.urls;
    addresses.insert(addresses.end(), config_.generation.urls.begin(),
                     config_.generation.urls.end());
    watch_ = DaemonWatch::Create(std::move(addresses), /*with_stats=*/false, nullptr);
    absl::Status status = absl::OkStatus();
    while (status.ok() && !StopRequested()) {
      status = ReapAndRestart();
      ReportStages();
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kTick, [&] { return num_stops_ > 0; });
    }
    StopAll();
    return status;
  }

 private:
  void AddDaemon(const char* role, int index, int stop_order) {
    Child child;
    child.name = absl::StrCat(role, index);
    child.arguments = {role, "--config", file_, "--index", absl::StrCat(index), "--supervised"};
    child.stop_order = stop_order;
    children_.push_back(std::move(child));
  }

  absl::Status Start(Child& child) {
    LYNX_ASSIGN_OR_RETURN(child.pid, SpawnSelf(child.arguments));
    Say(absl::StrCat(child.name, ": starting (pid ", child.pid, ")"));
    return absl::OkStatus();
  }

  bool StopRequested() {
    std::lock_guard lock(mutex_);
    return num_stops_ > 0;
  }

  // A child that ends before it was ever ready has a reason that a restart would only repeat.
  absl::Status ReapAndRestart() {
    for (Child& child : children_) {
      if (child.pid > 0 && waitpid(child.pid, &child.exit_status, WNOHANG) == child.pid) {
        child.pid = -1;
        if (!child.was_ready) {
          return absl::UnavailableError(
              absl::StrCat(child.name, " ", DescribeExit(child.exit_status), " while starting"));
        }
        Say(absl::StrCat(child.name, ": ", DescribeExit(child.exit_status), "; starting it again"));
        child.restart_at = Clock::now() + child.backoff;
        child.backoff = std::min(child.backoff * 2, kMaxBackoff);
        stage_[child.name].clear();
        if (child.name == "gateway") gateway_ready_.Reset();
      }
      if (child.pid < 0 && Clock::now() >= child.restart_at) {
        LYNX_RETURN_IF_ERROR(Start(child));
      }
    }
    return absl::OkStatus();
  }

  void ReportStages() {
    bool all_ready = true;
    size_t watched = 0;
    for (Child& child : children_) {
      std::string stage;
      if (child.name == "gateway") {
        const auto interval = announced_ ? kReadyInterval : kStartInterval;
        const bool ready =
            child.pid > 0 && gateway_ready_.Check(config_.hostname, config_.port, interval);
        stage = ready ? "ready" : "";
      } else {
        const WatchedDaemon daemon = watch_->Get(watched++);
        if (daemon.reachable) stage = daemon.info.ready() ? "ready" : daemon.info.detail();
      }
      if (stage == "ready") {
        child.was_ready = true;
      } else {
        all_ready = false;
      }
      if (stage.empty() || stage == stage_[child.name]) continue;
      stage_[child.name] = stage;
      Say(absl::StrCat(child.name, ": ", stage));
    }
    if (all_ready && !announced_) Announce();
    announced_ = all_ready;
  }

  void Announce() const {
    const std::string host = config_.hostname == "0.0.0.0" ? "127.0.0.1" : config_.hostname;
    const std::string base = absl::StrCat("http://", host, ":", config_.port, "/v1");
    const std::string name = config_.served_model_name.empty() ? DefaultModelName(config_.model)
                                                               : config_.served_model_name[0];
    Say(absl::StrCat("ready: OpenAI API at ", base, ", model ", name));
    Say(absl::StrCat("try:   curl ", base,
                     "/chat/completions -H 'Content-Type: application/json' -d "
                     "'{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"));
  }

  void StopAll() {
    Say("stopping");
    std::stable_sort(children_.begin(), children_.end(),
                     [](const Child& a, const Child& b) { return a.stop_order < b.stop_order; });
    for (size_t i = 0; i < children_.size();) {
      const int order = children_[i].stop_order;
      size_t end = i;
      for (; end < children_.size() && children_[end].stop_order == order; ++end) {
        if (children_[end].pid > 0) kill(children_[end].pid, SIGTERM);
      }
      for (; i < end; ++i) WaitFor(children_[i]);
    }
    Say("stopped");
  }

  // A second signal is passed on: children then end their streams with an error at once. Who does
  // not is killed. It goes as SIGINT: a second SIGTERM would be lost in a first that is pending.
  void WaitFor(Child& child) {
    if (child.pid <= 0) return;
    auto limit = Clock::now() + std::chrono::seconds(config_.shutdown_timeout_s + 5);
    bool hurried = false;
    while (waitpid(child.pid, &child.exit_status, WNOHANG) == 0) {
      std::unique_lock lock(mutex_);
      if (num_stops_ > 1 && !hurried) {
        kill(child.pid, SIGINT);
        limit = std::min(limit, Clock::now() + kHurry);
        hurried = true;
      }
      if (num_stops_ > 2 || Clock::now() > limit) kill(child.pid, SIGKILL);
      changed_.wait_for(lock, kTick);
    }
    child.pid = -1;
  }

  const ClusterConfig config_;
  const std::string file_;
  std::vector<Child> children_;
  std::unique_ptr<DaemonWatch> watch_;
  ReadinessProbe gateway_ready_;
  std::map<std::string, std::string> stage_;  // last one said, by child
  bool announced_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_stops_ = 0;
};

}  // namespace

absl::StatusOr<ClusterConfig> CompleteForServe(ClusterConfig config) {
  if (config.model.empty()) {
    return absl::InvalidArgumentError("model: missing; give --model PATH or a --config FILE");
  }
  // The daemons read another file, in another directory.
  for (std::string* path :
       {&config.model, &config.chat_template, &config.api_key_file, &config.kv.anchor_table}) {
    std::error_code ignored;
    if (!path->empty()) *path = std::filesystem::absolute(*path, ignored).string();
  }
  if (!config.cache_dir.empty() && config.cache_dir != "off") {
    std::error_code ignored;
    config.cache_dir = std::filesystem::absolute(config.cache_dir, ignored).string();
  }
  if (config.port == 0) {
    LYNX_ASSIGN_OR_RETURN(config.port, FindFreePort());
  }
  if (!config.colocated) LYNX_RETURN_IF_ERROR(FillUrls(&config.context));
  LYNX_RETURN_IF_ERROR(FillUrls(&config.generation));
  ShareMachine(&config);
  LYNX_RETURN_IF_ERROR(CheckClusterConfig(config));
  LYNX_RETURN_IF_ERROR(CheckConfigFiles(config));
  return config;
}

absl::Status RunServe(ClusterConfig config, const std::vector<std::string>& api_keys) {
  LYNX_RETURN_IF_ERROR(InitLog("serve", config.log_level));
  LYNX_RETURN_IF_ERROR(CheckDevice(config));
  LYNX_RETURN_IF_ERROR(CheckModel(config.model));
  Say(absl::StrCat("model: ", config.model));
  LYNX_RETURN_IF_ERROR(CheckPortsAreFree(config));

  StopSignals signals;
  LYNX_ASSIGN_OR_RETURN(const auto directory, RunDirectory::Create());
  if (!api_keys.empty()) {  // in a file that only this user can read, not in a command line
    config.api_key_file = directory->path() + "/api_keys";
    std::ofstream keys(config.api_key_file);
    for (const std::string& key : api_keys) keys << key << '\n';
  }
  const std::string file = directory->path() + "/cluster.yaml";
  std::ofstream(file) << ToYaml(config);
  Supervisor supervisor(config, file);
  return supervisor.Run(signals);
}

}  // namespace lynx
