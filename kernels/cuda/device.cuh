// SPDX-License-Identifier: Apache-2.0
// What a kernel may use of the device: CUDA's own names (threadIdx, __syncthreads, __shfl_*_sync,
// __ballot_sync, atomicAdd …) and the few below. Included first by every .cuh.
//
// The same sources run in two worlds. nvcc makes all of this plain pointers and instructions. The
// emulation of tests/simt/ compiles the kernels for the CPU, one fiber a thread, and checks every
// access: bounds, reads of shared memory that nobody wrote, races between barriers, barriers that
// some threads miss. Rules that make this possible:
//
//  * Memory is reached through Global<T> and Shared<T>, never through a raw pointer. p[i], p + n,
//    Cast<U>(p) are all there is; write `T x = p[i]`, not `auto x` (an element may be a proxy).
//    A vector access is Cast<uint4>(p)[i]; its alignment is checked.
//  * Shared arrays are declared by LYNX_SHARED(T, name, count) or lie in the one dynamic array,
//    LYNX_DYNAMIC_SHARED(name), a Shared<std::byte>.
//  * Every warp instruction names the full mask and is reached by all 32 lanes.
//  * Kernels are started by Launch (launch.h) and take one struct of arguments by value.
//  * Code is compiled without contraction: a fused multiply-add is written fmaf.
//  * Before each kernel stands its budget, which the cuda_static test holds the compiler to:
//      // budget: NameKernel registers 64 shared 8192
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lynx/types.h"

namespace lynx::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

}  // namespace lynx::cuda

#ifdef LYNX_SIMT
#include "simt/device.h"  // the same names, checked
#else

namespace lynx::cuda {

template <typename T>
using Global = T*;
template <typename T>
using Shared = T*;

template <typename U, typename T>
__host__ __device__ U* Cast(T* p) {
  return reinterpret_cast<U*>(p);
}

#define LYNX_SHARED(T, name, count) __shared__ alignas(16) T name[count]
#define LYNX_DYNAMIC_SHARED(name)                                  \
  extern __shared__ __align__(16) std::byte lynx_dynamic_shared[]; \
  ::lynx::cuda::Shared<std::byte> name = lynx_dynamic_shared

// Starts copying 16 bytes from global to shared memory; nobody may touch them before the copying
// thread's CopyWait and a barrier.
__device__ inline void CopyAsync16(Shared<std::byte> to, Global<const std::byte> from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ inline void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's commits are still under way.
template <int kPending>
__device__ inline void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lynx::cuda

#endif  // LYNX_SIMT
