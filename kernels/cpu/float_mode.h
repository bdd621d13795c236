// SPDX-License-Identifier: Apache-2.0
// Denormals. Every kernel runs with FTZ and DAZ set: AMX knows no other mode, and one denormal
// activation would otherwise slow a kernel down a hundredfold.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lynx::cpu {

// Sets flush-to-zero and denormals-are-zero on the current thread for its own lifetime.
class ScopedFlushToZero {
 public:
#if defined(__x86_64__)
  ScopedFlushToZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFtz | kDaz); }
  ~ScopedFlushToZero() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kFtz = 1u << 15;
  static constexpr unsigned kDaz = 1u << 6;
  const unsigned saved_;
#else
  ScopedFlushToZero() {}
  ~ScopedFlushToZero() {}
#endif

 public:
  ScopedFlushToZero(const ScopedFlushToZero&) = delete;
  ScopedFlushToZero& operator=(const ScopedFlushToZero&) = delete;
};

}  // namespace lynx::cpu
