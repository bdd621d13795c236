// SPDX-License-Identifier: Apache-2.0
#include "app/build_engine.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "absl/strings/str_join.h"
#include "app/cuda_library.h"
#include "kernels/cpu/available_cores.h"
#include "kernels/cpu/thread_collective.h"
#include "model/tensor_parallel.h"

namespace lynx {
int NumThreads(int configured) {
  if (configured > 0) return configured;
  return std::max(1, static_cast<int>(cpu::AvailableCores().size()));
}

absl::Status CheckDevice(const ClusterConfig& config) {
  if (config.device != "cuda") return absl::OkStatus();
  if (config.compute == "f32") {
    return absl::InvalidArgumentError("compute: f32: device cuda computes fast only");
  }
  if (config.kv.resident != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.resident: ", config.kv.resident, ": device cuda keeps bf16 only"));
  }
  // Of those that CUDA_VISIBLE_DEVICES shows.
  const int num_gpus =
      std::max(config.context.tensor_parallel_size, config.generation.tensor_parallel_size);
  for (int gpu = 0; gpu < num_gpus; ++gpu) LYNX_RETURN_IF_ERROR(CheckCudaDevice(gpu));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const ClusterConfig& config, int threads,
                                                     int device) {
  LYNX_RETURN_IF_ERROR(CheckDevice(config));
  if (config.device == "cuda") return MakeCudaBackend(device, NumThreads(threads));
  const std::optional<cpu::Target> target = cpu::FindTarget(config.cpu_target);
  if (!target.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("cpu_target: '", config.cpu_target,
                                                   "' is not one of ",
                                                   absl::StrJoin(cpu::kTargetNames, ", ")));
  }
  std::unique_ptr<Backend> backend =
      cpu::CpuBackend::Create({.compute = config.compute == "f32" ? Compute::kF32 : Compute::kFast,
                               .num_threads = NumThreads(threads),
                               .target = *target});
  if (backend == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cpu_target: ", config.cpu_target, ": this processor does not have it"));
  }
  return backend;
}

absl::StatusOr<Backends> MakeBackends(const ClusterConfig& config, const RoleConfig& role) {
  const int num_ranks = role.tensor_parallel_size;
  const int threads = std::max(1, NumThreads(role.threads) / num_ranks);
  Backends backends(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) {
    LYNX_ASSIGN_OR_RETURN(backends[rank], MakeBackend(config, threads, rank));
  }
  return backends;
}

std::string CacheDirectory(const ClusterConfig& config) {
  if (config.cache_dir == "off") return "";
  if (!config.cache_dir.empty()) return config.cache_dir;
  // XDG Base Directory Specification: a relative path is to be ignored.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return absl::StrCat(cache, "/lynx");
  const char* home = std::getenv("HOME");
  return home != nullptr && home[0] == '/' ? absl::StrCat(home, "/.cache/lynx") : "";
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(
    const ClusterConfig& config, const Backends& backends, const RoleConfig& role,
    const std::function<void(const LoadProgress&)>& progress) {
  const int max_rows = role.max_num_batched_tokens;
  if (backends.size() == 1) {
    return Model::Load(config.model, *backends[0], max_rows, progress, config.max_model_len,
                       CacheDirectory(config));
  }
  std::vector<Backend*> ranks;
  for (const auto& backend : backends) ranks.push_back(backend.get());
  const auto make_collectives = [&](int64_t max_count) -> absl::StatusOr<Collectives> {
    if (!ranks[0]->is_host()) return MakeCudaCollectives(ranks, max_count);
    return cpu::MakeThreadCollectives(static_cast<int>(ranks.size()));
  };
  return LoadTensorParallel(config.model, ranks, make_collectives, max_rows, progress,
                            config.max_model_len, CacheDirectory(config));
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const ClusterConfig& config,
                                                         DeviceChunks* device) {
  const auto& t = config.transceiver;
  UcxOptions options{.tls = t.ucx_tls,
                     .heartbeat_interval_ms = t.heartbeat_interval_ms,
                     .suspect_after_ms = t.suspect_after_ms};
  if (device != nullptr) options.use_device = [device] { device->UseDevice(); };
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, MakeUcxTransport(options));
  constexpr size_t kChunkMemory = size_t{512} << 20;
  if (transport->takes_device_memory() && !device->Reserve(kChunkMemory)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("device memory: ", kChunkMemory, " bytes for chunks are not free"));
  }
  return transport;
}

int64_t DefaultKvMemory(const Backends& backends, const RoleConfig& role, const KvLayout& layout,
                        int max_model_len) {
  const Backend& backend = *backends[0];
  if (!backend.is_host()) {
    int64_t free = backend.free_bytes(role.daemons_per_gpu);
    for (const auto& other : backends) {
      free = std::min(free, other->free_bytes(role.daemons_per_gpu));
    }
    return static_cast<int64_t>(free * role.gpu_memory_fraction) *
           static_cast<int64_t>(backends.size());
  }
  const int64_t per_sequence = (max_model_len + kBlockSize - 1) / kBlockSize + 1;
  return std::min(4 * per_sequence * static_cast<int64_t>(layout.block_bytes()),
                  backend.free_bytes(/*num_sharers=*/1) / 2);
}

absl::StatusOr<int> NumKvBlocks(int64_t kv_memory, const KvLayout& layout) {
  const int64_t block_bytes = static_cast<int64_t>(layout.block_bytes());
  const int64_t blocks = kv_memory / block_bytes;
  if (blocks < 2) {
    return absl::InvalidArgumentError(absl::StrCat("kv_cache_config.host_cache_size: ", kv_memory,
                                                   " bytes hold ", blocks, " blocks of ",
                                                   block_bytes, " bytes; at least 2 are needed"));
  }
  return static_cast<int>(std::min<int64_t>(blocks, (1 << 30) / kBlockSize));
}

std::string DefaultModelName(const std::string& path) {
  std::filesystem::path p = std::filesystem::path(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  if (p.extension() != ".gguf") return p.filename().string();
  const std::string stem = p.stem().string();
  const size_t part = stem.rfind("-00001-of-");  // the first file of a split model
  return part != 0 && part != stem.npos ? stem.substr(0, part) : stem;
}

}  // namespace lynx
