// SPDX-License-Identifier: Apache-2.0
// The configuration's words -> the objects they name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cluster_config.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/device_chunks.h"
#include "lynx/model_config.h"
#include "lynx/status.h"
#include "lynx/transport.h"
#include "model/model.h"

namespace lynx {

// kFailedPrecondition when this machine or build lacks what is asked for, kInvalidArgument when
// cuda is to compute in float32 or to pack KV. CheckDevice says so before anything is started.
absl::Status CheckDevice(const ClusterConfig& config);
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ClusterConfig& config, int threads,
                                                     int device = 0);

// One for each rank of the role: GPU r for rank r, or an equal part of the threads.
using Backends = std::vector<std::unique_ptr<Backend>>;
absl::StatusOr<Backends> MakeBackends(const ClusterConfig& config, const RoleConfig& role);

// Of cache_dir, or where the XDG Base Directory Specification says; "": no cache.
std::string CacheDirectory(const ClusterConfig& config);

// The role's model on one back-end, or divided among several. kFailedPrecondition when the
// back-ends cannot work together.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const ClusterConfig& config, const Backends& backends, const RoleConfig& role,
    const std::function<void(const LoadProgress&)>& progress);

// UCX. Where it takes device memory and `device` is not null, memory for chunks is set aside there.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const ClusterConfig& config,
                                                         DeviceChunks* device);

int NumThreads(int configured);  // 0: the cores this process may use

// Bytes of a KV pool that the configuration leaves open. On the CPU: four sequences of
// max_model_len, but at most half of the memory that is available. On GPUs: gpu_memory_fraction of
// what is free now, or with daemons_per_gpu of what is left of the daemon's part (all of them get
// as much as the fullest has).
int64_t DefaultKvMemory(const Backends& backends, const RoleConfig& role, const KvLayout& layout,
                        int max_model_len);

// Blocks that kv_memory bytes hold. kInvalidArgument when they are fewer than two.
absl::StatusOr<int> NumKvBlocks(int64_t kv_memory, const KvLayout& layout);

// The name under which a model is served when the configuration gives none.
std::string DefaultModelName(const std::string& path);

}  // namespace lynx
