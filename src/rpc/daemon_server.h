// SPDX-License-Identifier: Apache-2.0
// The gRPC server of a prefill or decode daemon: Info and Stats always, Generate and Prefill as
// soon as there is an engine behind them (before that they answer kUnavailable).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "lynx.pb.h"
#include "lynx/status.h"

namespace lynx {

class DaemonServer {
 public:
  // Listens at once, so that peers and the gateway can see "loading". info is called from any
  // thread and answers Info.
  static absl::StatusOr<std::unique_ptr<DaemonServer>> Create(const std::string& listen_address,
                                                              int watchdog_s,
                                                              std::function<v1::DaemonInfo()> info);
  virtual ~DaemonServer() = default;  // gives open calls a second to end, then cancels them

  // The engine outlives this; vocab_size bounds the token ids of requests.
  virtual void Serve(Engine* engine, int vocab_size) = 0;
};

}  // namespace lynx
