// SPDX-License-Identifier: Apache-2.0
// Starting a kernel on the emulated device, and what is reported when it goes wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

struct dim3;

namespace lynx::simt {

// A check that failed: one line that names kernel, block, thread, source line, and the array and
// index. Thrown out of the launch (or the runtime call) that found it, after all threads of the
// block were unwound.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Runs the kernel (body calls it once per thread) block after block, in an order shuffled by
// BlockOrder(); returns when all are done. One launch at a time: others wait.
void RunKernel(const dim3& grid, const dim3& block, size_t shared_bytes, const char* name,
               void (*body)(const void*), const void* argument);

template <typename Body>
void RunKernel(const dim3& grid, const dim3& block, size_t shared_bytes, const char* name,
               const Body& body) {
  RunKernel(
      grid, block, shared_bytes, name, [](const void* b) { (*static_cast<const Body*>(b))(); },
      &body);
}

// The seed of the order of blocks from now on; 0 means ascending.
void SetBlockOrder(uint64_t seed);

// What cudaMemGetInfo calls total and cudaMalloc does not exceed.
void SetDeviceMemory(size_t bytes);

}  // namespace lynx::simt
