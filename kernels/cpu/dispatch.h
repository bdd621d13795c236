// SPDX-License-Identifier: Apache-2.0
// One source, several instruction sets, through Highway's foreach_target: a kernel file is compiled
// once for each target inside a `#pragma GCC target` region, so that nothing outside the region (a
// std:: template above all) is ever emitted with instructions that the processor may lack, which
// per-file compiler flags cannot promise. The choice is made per back-end object, by our Target,
// and not by Highway's global state: tests run all targets side by side in one process.
//
// Include this before any header of Highway. A kernel is guarded by LYNX_SIMD_PASS; its scalar
// reference is the function of the same name with the suffix Ref in lynx::cpu.
#pragma once

#include "kernels/cpu/target.h"

// Lambdas of a kernel: `[&](auto i) LYNX_LAMBDA { … }`. GCC's cost model would leave some of them
// out of line, and an array of accumulators with them.
#define LYNX_LAMBDA HWY_ATTR __attribute__((always_inline))

// SSE2 stays enabled, as the compiler's baseline it must, but its pass compiles no kernel.
#if defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#define LYNX_SIMD_PASS (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
// The function for a Target, none of which is kAuto.
#define LYNX_CPU_SELECT(target, name)                      \
  ((target) >= ::lynx::cpu::Target::kAvx512 ? N_AVX3::name \
   : (target) == ::lynx::cpu::Target::kAvx2 ? N_AVX2::name \
                                            : name##Ref)
#else
#define LYNX_SIMD_PASS 0
#define LYNX_CPU_SELECT(target, name) name##Ref
#endif
