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

// kFailedPrecondition when this machine or build lacks what is asked for.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ClusterConfig& config, int threads);

int NumThreads(int configured);  // 0: the cores this process may use

// Blocks of a KV pool: what kv_memory holds, or by default four sequences of max_model_len, but
// at most half of the memory that is available.
absl::StatusOr<int> NumKvBlocks(int64_t kv_memory, const KvLayout& layout, int max_model_len);

// The name under which a model is served when the configuration gives none.
std::string DefaultModelName(const std::string& path);

}  // namespace lynx
