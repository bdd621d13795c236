// SPDX-License-Identifier: Apache-2.0
// Arrays for kernels: aligned to a cache line or more, contents undefined.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace lynx::cpu {

struct FreeAligned {
  void operator()(void* p) const { std::free(p); }
};
template <typename T>
using AlignedArray = std::unique_ptr<T[], FreeAligned>;

// Running out of memory is the end of the process. alignment is a power of two, at least 64.
template <typename T>
AlignedArray<T> AllocateAligned(size_t size, size_t alignment = 64) {
  const size_t bytes = (size * sizeof(T) + alignment - 1) / alignment * alignment;
  void* p = std::aligned_alloc(alignment, bytes);
  if (p == nullptr) {
    std::fprintf(stderr, "out of memory: %zu bytes\n", bytes);
    std::abort();
  }
  return AlignedArray<T>(static_cast<T*>(p));
}

// Grows on demand and stays, so that a decode step allocates nothing. Growing loses the contents.
template <typename T>
class ScratchArray {
 public:
  T* Reserve(size_t size) {
    if (size > capacity_) {
      data_ = AllocateAligned<T>(size);
      capacity_ = size;
    }
    return data_.get();
  }
  T* get() const { return data_.get(); }

 private:
  AlignedArray<T> data_;
  size_t capacity_ = 0;
};

}  // namespace lynx::cpu
