// SPDX-License-Identifier: Apache-2.0
// An array that ends where a page without access begins: reading or writing past it is a SIGSEGV.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace lynx::cpu {

template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(size_t size) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t bytes = (size * sizeof(T) + page - 1) / page * page;
    mapped_ = bytes + page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + bytes, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(base_ + bytes) - size;
  }
  ~GuardedArray() { munmap(base_, mapped_); }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;

  T* data() const { return data_; }

 private:
  std::byte* base_;
  size_t mapped_;
  T* data_;
};

}  // namespace lynx::cpu
