// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bench/handoff/placement.h"
#include "core/cluster_config.h"
#include "lynx/status.h"

namespace lynx {

// Processes of one cluster, for a measurement: a gateway, a decode daemon and, unless colocated, a
// prefill daemon, on loopback or on the hosts of a NetworkLab. All methods but Kill are for the
// thread that started it.
class HandoffServers {
 public:
  struct Options {
    ClusterConfig config;   // urls and ports are filled in
    std::string directory;  // for the configuration and the logs
    std::string name;       // of their files
    bool in_lab = false;    // gateway and decode on d0, prefill on p0
    int port_offset = 0;    // in a lab: distinct for clusters that live together
    HandoffPlacement placement;
  };
  // Returns once the processes run; they still load the model.
  static absl::StatusOr<std::unique_ptr<HandoffServers>> Start(Options options);
  ~HandoffServers();

  // Waits for the gateway's /ready. The error has the end of the logs.
  absl::Status WaitReady();
  // Ends the processes at once, so that running requests fail. Any thread.
  void Kill();

  int port() const { return options_.config.port; }  // of the gateway, on 127.0.0.1
  // EngineStats of the cluster's daemons by name, summed.
  absl::StatusOr<std::map<std::string, int64_t>> Counters() const;

 private:
  explicit HandoffServers(Options options) : options_(std::move(options)) {}
  absl::Status FillAddresses();
  absl::Status StartAll();
  absl::Status Spawn(const std::string& role, const char* host, std::vector<int> cores);
  void Signal(int signal);
  bool Reap();  // true: none is left
  std::string EndOfLogs() const;

  Options options_;
  std::mutex mutex_;
  std::map<std::string, pid_t> pids_;  // of those not yet waited for, by role
};

}  // namespace lynx
