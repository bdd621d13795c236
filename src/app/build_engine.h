// SPDX-License-Identifier: Apache-2.0
// The configuration's words -> the objects they name.
#pragma once

#include <memory>
#include <string>

#include "core/cluster_config.h"
#include "kernels/cpu/cpu_backend.h"
#include "lynx/model_config.h"
#include "lynx/status.h"

namespace lynx {

// kFailedPrecondition when this machine or build lacks what is asked for, or cuda is to compute in
// float32. CheckDevice says so before anything is started.
absl::Status CheckDevice(const ClusterConfig& config);
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ClusterConfig& config, int threads);

int NumThreads(int configured);  // 0: the cores this process may use

// Bytes of a KV pool that the configuration leaves open. On the CPU: four sequences of
// max_model_len, but at most half of the memory that is available. On a GPU: memory_fraction of
// what is free now.
int64_t DefaultKvMemory(const Backend& backend, double memory_fraction, const KvLayout& layout,
                        int max_model_len);

// Blocks that kv_memory bytes hold. kInvalidArgument when they are fewer than two.
absl::StatusOr<int> NumKvBlocks(int64_t kv_memory, const KvLayout& layout);

// The name under which a model is served when the configuration gives none.
std::string DefaultModelName(const std::string& path);

}  // namespace lynx
