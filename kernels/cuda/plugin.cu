// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/nccl_collective.h"
#include "lynx/cuda_plugin.h"

lynx::Backend* lynx_create_cuda_backend(int device, int num_threads, char* error,
                                        size_t error_bytes) {
  return lynx::cuda::CudaBackend::Create({.device = device, .num_threads = num_threads}, error,
                                         error_bytes)
      .release();
}

bool lynx_check_cuda_device(int device, char* error, size_t error_bytes) {
  return lynx::cuda::CheckDevice(device, error, error_bytes).has_value();
}

bool lynx_create_cuda_collectives(lynx::Backend* const* backends, int num_ranks, int64_t max_count,
                                  lynx::Collective** collectives, char* error, size_t error_bytes) {
  std::vector<lynx::cuda::NcclRank> ranks;
  for (int r = 0; r < num_ranks; ++r) {
    const auto* backend = static_cast<const lynx::cuda::CudaBackend*>(backends[r]);
    ranks.push_back({.device = backend->device(), .stream = backend->compute_stream()});
  }
  auto members = lynx::cuda::MakeNcclCollectives(ranks, max_count, error, error_bytes);
  for (size_t r = 0; r < members.size(); ++r) collectives[r] = members[r].release();
  return !members.empty();
}
