// SPDX-License-Identifier: Apache-2.0
// Keeps an eye on the daemons of a cluster: asks each for Info and Stats a few times a second.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "lynx.pb.h"

namespace lynx {

struct WatchedDaemon {
  std::string address;
  bool reachable = false;  // answered the last Info
  std::string error;       // why not
  v1::DaemonInfo info;     // of the last answer
  v1::StatsReply stats;
};

// Thread-safe.
class DaemonWatch {
 public:
  // on_info, if set, is called after every answer or failure, from any thread.
  static std::unique_ptr<DaemonWatch> Create(std::vector<std::string> addresses, bool with_stats,
                                             std::function<void(const WatchedDaemon&)> on_info);
  virtual ~DaemonWatch() = default;

  virtual size_t size() const = 0;
  virtual WatchedDaemon Get(size_t index) const = 0;
  virtual std::shared_ptr<grpc::Channel> channel(size_t index) const = 0;
  // A call to this daemon failed: it counts as unreachable until it answers again.
  virtual void MarkFailed(size_t index, const std::string& why) = 0;
};

}  // namespace lynx
