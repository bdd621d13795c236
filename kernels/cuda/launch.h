// SPDX-License-Identifier: Apache-2.0
// Starts a kernel. A refused launch is a bug (shapes were checked by the caller) and aborts with
// the kernel's name.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace lynx::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
};

inline void AbortOnError(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}

#ifdef LYNX_SIMT
// On the emulated device (tests/simt).
template <typename Args>
void Launch(const LaunchShape& shape, void (*kernel)(Args), const Args& args, const char* name) {
  simt::LaunchKernel(shape.stream, shape.grid, shape.block, shape.shared_bytes, name,
                     [=] { kernel(args); });
}
#else
template <typename Args>
void Launch(const LaunchShape& shape, void (*kernel)(Args), const Args& args, const char* name) {
  constexpr size_t kSharedWithoutOptIn = 48 << 10;
  if (shape.shared_bytes > kSharedWithoutOptIn) {
    AbortOnError(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shape.shared_bytes)),
                 name);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  AbortOnError(cudaLaunchKernelEx(&config, kernel, args), name);
}
#endif

}  // namespace lynx::cuda
