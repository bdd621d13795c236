// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI: four products of bytes and their sum in one instruction.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 about its own _mm512_undefined_*
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/gemm_kernels.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512vnni")

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_kernels-inl.h"
#include "kernels/cpu/gemm_vector512-inl.h"

struct Avx512Vnni : Vector512 {
  static constexpr bool kHasDot = true;
  static LYNX_INLINE I Dot(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
};

}  // namespace

constinit const GemmKernels kGemmAvx512Vnni = MakeKernels<Avx512Vnni>();

}  // namespace lynx::cpu

#pragma GCC pop_options
