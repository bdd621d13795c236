// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_backend.h"
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
