// SPDX-License-Identifier: Apache-2.0
// Memory of the device and pinned memory of the host, with owners. Null when there is none left.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

namespace lynx::cuda {

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;

// 256-byte aligned; contents undefined.
inline DeviceMemory AllocateDevice(size_t bytes) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, bytes) != cudaSuccess) {
    cudaGetLastError();  // or it would be reported by the next call
    return nullptr;
  }
  return DeviceMemory(static_cast<std::byte*>(memory));
}

// Kernels reach it under the same address.
inline PinnedMemory AllocatePinned(size_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocMapped) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  return PinnedMemory(static_cast<std::byte*>(memory));
}

// Offsets of arrays that lie one behind the other, each aligned for vector loads.
class ArrayOffsets {
 public:
  static constexpr size_t kAlignment = 256;
  template <typename T>
  size_t Add(size_t count) {
    const size_t offset = end_;
    end_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }
  size_t bytes() const { return end_; }

 private:
  size_t end_ = 0;
};

template <typename T>
T* ArrayAt(std::byte* memory, size_t offset) {
  return reinterpret_cast<T*>(memory + offset);
}

}  // namespace lynx::cuda
