// SPDX-License-Identifier: Apache-2.0
// Starting a kernel on the emulated device, and what is reported when it goes wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

struct dim3;
struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace lynx::simt {

// A check that failed: one line that names kernel, block, thread, source line, and the array and
// index. Thrown out of the call that waited for the kernel (simt/streams.h), or of the runtime call
// that found it, after all threads of the block were unwound.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Queues the kernel, on a stream of the calling thread's device. Its blocks run one after another,
// in an order shuffled by the seed, each thread by one call of `body`.
void LaunchKernel(cudaStream_t stream, const dim3& grid, const dim3& block, size_t shared_bytes,
                  const char* name, std::function<void()> body);

// The seed of the order of blocks from now on; 0 means ascending.
void SetBlockOrder(uint64_t seed);

// What cudaMemGetInfo calls total and cudaMalloc does not exceed, on every device.
void SetDeviceMemory(size_t bytes);
// How many allocations of device and pinned memory there have been.
int NumAllocations();
// Lets the host, like a network card, follow pointers into the allocation at `pointer`. What it
// writes there goes unseen: all bytes count as written.
void ShareWithHost(void* pointer);
// One, until this says otherwise; at most 8.
void SetNumDevices(int count);

}  // namespace lynx::simt
