// SPDX-License-Identifier: Apache-2.0
#include "app/build_engine.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace lynx {
namespace {

int64_t AvailableMemory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (int64_t kib = 0; in >> key >> kib >> unit;) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return int64_t{4} << 30;
}

}  // namespace

int NumThreads(int configured) {
  if (configured > 0) return configured;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ClusterConfig& config, int threads) {
  if (config.device == "cuda") {
    return absl::FailedPreconditionError("device: cuda: this build has no CUDA back-end; use cpu");
  }
  using cpu::Target;
  const Target target = config.cpu_target == "scalar"       ? Target::kScalar
                        : config.cpu_target == "avx2"       ? Target::kAvx2
                        : config.cpu_target == "avx512"     ? Target::kAvx512
                        : config.cpu_target == "avx512vnni" ? Target::kAvx512Vnni
                                                            : Target::kAuto;
  std::unique_ptr<Backend> backend =
      cpu::CpuBackend::Create({.compute = config.compute == "f32" ? Compute::kF32 : Compute::kFast,
                               .num_threads = NumThreads(threads),
                               .target = target});
  if (backend == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cpu_target: ", config.cpu_target, ": this processor does not have it"));
  }
  return backend;
}

absl::StatusOr<int> NumKvBlocks(int64_t kv_memory, const KvLayout& layout, int max_model_len) {
  const int64_t block_bytes = static_cast<int64_t>(layout.block_bytes());
  const int64_t per_sequence = (max_model_len + kBlockSize - 1) / kBlockSize + 1;
  if (kv_memory == 0) {
    kv_memory = std::min(4 * per_sequence * block_bytes, AvailableMemory() / 2);
  }
  const int64_t blocks = kv_memory / block_bytes;
  if (blocks < 2) {
    return absl::InvalidArgumentError(absl::StrCat("kv_cache_config.host_cache_size: ", kv_memory,
                                                   " bytes hold ", blocks, " blocks of ",
                                                   block_bytes, " bytes; at least 2 are needed"));
  }
  return static_cast<int>(std::min<int64_t>(blocks, 1 << 30));
}

std::string DefaultModelName(const std::string& path) {
  std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

}  // namespace lynx
