// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "lynx/status.h"

namespace lynx {

// A channel to a daemon: reconnects within a second, notices a dead peer by keep-alive.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address);

// gRPC's codes are Abseil's.
absl::Status ToStatus(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace lynx
