// SPDX-License-Identifier: Apache-2.0
#include "app/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "lynx/cuda_plugin.h"

namespace lynx {
namespace {

absl::Status Missing(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("device: cuda: ", what));
}

// The library stays open as long as the process lives.
template <typename Function>
absl::StatusOr<Function*> Find(const char* name) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (program.parent_path() / "liblynx_cuda.so").string();
  if (!std::filesystem::exists(path, error)) {
    return Missing(absl::StrCat(path, " is not there: this build has no CUDA back-end"));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Missing(dlerror());
  void* symbol = dlsym(library, name);
  if (symbol == nullptr) return Missing(absl::StrCat(path, " is of another build: ", dlerror()));
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace

absl::Status CheckCudaDevice(int device) {
  LYNX_ASSIGN_OR_RETURN(auto* check, Find<LynxCheckCudaDevice>("lynx_check_cuda_device"));
  char error[256] = {};
  return check(device, error, sizeof(error)) ? absl::OkStatus() : Missing(error);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device, int num_threads) {
  LYNX_ASSIGN_OR_RETURN(auto* create, Find<LynxCreateCudaBackend>("lynx_create_cuda_backend"));
  char error[256] = {};
  std::unique_ptr<Backend> backend(create(device, num_threads, error, sizeof(error)));
  if (backend == nullptr) return Missing(error);
  return backend;
}

absl::StatusOr<std::vector<std::unique_ptr<Collective>>> MakeCudaCollectives(
    std::span<Backend* const> backends, int64_t max_count) {
  LYNX_ASSIGN_OR_RETURN(auto* create,
                        Find<LynxCreateCudaCollectives>("lynx_create_cuda_collectives"));
  const int num_ranks = static_cast<int>(backends.size());
  std::vector<Collective*> made(num_ranks);
  char error[256] = {};
  if (!create(backends.data(), num_ranks, max_count, made.data(), error, sizeof(error))) {
    return Missing(absl::StrCat("tensor_parallel_size ", num_ranks, ": ", error));
  }
  std::vector<std::unique_ptr<Collective>> collectives;
  for (Collective* collective : made) collectives.emplace_back(collective);
  return collectives;
}

}  // namespace lynx
