// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/servers.h"

#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "app/child_process.h"
#include "app/http_client.h"
#include "bench/lab/network_lab.h"
#include "lynx.grpc.pb.h"
#include "rpc/channel.h"

namespace lynx {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kStartLimit = std::chrono::seconds(180);
constexpr auto kStopLimit = std::chrono::seconds(5);
constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kCallLimit = std::chrono::seconds(20);
constexpr size_t kLogBytesShown = 1500;
// In a lab, where nobody else listens.
constexpr int kGatewayPort = 8000, kPrefillPort = 9100, kDecodePort = 9200;

}  // namespace

absl::StatusOr<std::unique_ptr<HandoffServers>> HandoffServers::Start(Options options) {
  std::unique_ptr<HandoffServers> servers(new HandoffServers(std::move(options)));
  LYNX_RETURN_IF_ERROR(servers->FillAddresses());
  LYNX_RETURN_IF_ERROR(servers->StartAll());
  return servers;
}

HandoffServers::~HandoffServers() {
  Signal(SIGTERM);
  const auto limit = Clock::now() + kStopLimit;
  while (!Reap()) {
    if (Clock::now() > limit) Kill();
    std::this_thread::sleep_for(kTick);
  }
}

absl::Status HandoffServers::FillAddresses() {
  ClusterConfig& config = options_.config;
  config.hostname = "127.0.0.1";
  std::string prefill_host = config.hostname, decode_host = config.hostname;
  int prefill_port = kPrefillPort + options_.port_offset;
  int decode_port = kDecodePort + options_.port_offset;
  config.port = kGatewayPort + options_.port_offset;
  if (options_.in_lab) {
    prefill_host = NetworkLab::AddressOf("p0");
    decode_host = NetworkLab::AddressOf("d0");
  } else {
    for (int* port : {&config.port, &prefill_port, &decode_port}) {
      LYNX_ASSIGN_OR_RETURN(*port, FindFreePort());
    }
  }
  config.context.urls = {absl::StrCat(prefill_host, ":", prefill_port)};
  config.generation.urls = {absl::StrCat(decode_host, ":", decode_port)};
  return CheckClusterConfig(config);
}

absl::Status HandoffServers::StartAll() {
  std::ofstream(absl::StrCat(options_.directory, "/", options_.name, ".yaml"))
      << ToYaml(options_.config);
  if (!options_.config.colocated) {
    LYNX_RETURN_IF_ERROR(Spawn("prefill", "p0", options_.placement.prefill));
  }
  LYNX_RETURN_IF_ERROR(Spawn("decode", "d0", options_.placement.decode));
  return Spawn("gateway", "d0", {});
}

absl::Status HandoffServers::Spawn(const std::string& role, const char* host,
                                   std::vector<int> cores) {
  const std::string file = absl::StrCat(options_.directory, "/", options_.name);
  SpawnOptions how{.log_file = absl::StrCat(file, ".", role, ".log"), .cores = std::move(cores)};
  if (options_.in_lab) {
    how.network_namespace = NetworkLab::NamespaceOf(host);
    how.environment = {absl::StrCat("UCX_NET_DEVICES=", NetworkLab::kDevice)};
  }
  LYNX_ASSIGN_OR_RETURN(const pid_t pid,
                        SpawnSelf({role, "--config", file + ".yaml", "--supervised"}, how));
  std::lock_guard lock(mutex_);
  pids_[role] = pid;
  return absl::OkStatus();
}

absl::Status HandoffServers::WaitReady() {
  ReadinessProbe probe;
  const auto limit = Clock::now() + kStartLimit;
  const size_t all = options_.config.colocated ? 2 : 3;
  while (!probe.Check(options_.config.hostname, port(), 2 * kTick)) {
    Reap();
    const bool ended = [&] {
      std::lock_guard lock(mutex_);
      return pids_.size() < all;
    }();
    if (ended || Clock::now() > limit) {
      return absl::UnavailableError(absl::StrCat("the cluster ", options_.name,
                                                 ended ? " ended" : " is not ready",
                                                 " while starting; its logs:\n", EndOfLogs()));
    }
    std::this_thread::sleep_for(kTick);
  }
  return absl::OkStatus();
}

void HandoffServers::Kill() { Signal(SIGKILL); }

void HandoffServers::Signal(int signal) {
  std::lock_guard lock(mutex_);
  for (const auto& [role, pid] : pids_) kill(pid, signal);
}

bool HandoffServers::Reap() {
  std::lock_guard lock(mutex_);
  std::erase_if(pids_,
                [](const auto& child) { return waitpid(child.second, nullptr, WNOHANG) != 0; });
  return pids_.empty();
}

std::string HandoffServers::EndOfLogs() const {
  std::string text;
  for (const char* role : {"prefill", "decode", "gateway"}) {
    std::ostringstream log;
    log << std::ifstream(absl::StrCat(options_.directory, "/", options_.name, ".", role, ".log"))
               .rdbuf();
    const std::string all = log.str();
    if (all.empty()) continue;
    absl::StrAppend(&text, "--- ", role, "\n",
                    all.substr(all.size() - std::min(all.size(), kLogBytesShown)));
  }
  return text;
}

absl::StatusOr<std::map<std::string, int64_t>> HandoffServers::Counters() const {
  std::vector<std::string> urls = options_.config.generation.urls;
  if (!options_.config.colocated) urls.push_back(options_.config.context.urls[0]);
  std::map<std::string, int64_t> sums;
  for (const std::string& url : urls) {
    const auto stub = v1::Daemon::NewStub(OpenChannel(url));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
    v1::StatsReply reply;
    LYNX_RETURN_IF_ERROR(ToStatus(stub->Stats(&context, {}, &reply)));
    for (const auto& [name, value] : reply.counters()) sums[name] += value;
  }
  return sums;
}

}  // namespace lynx
