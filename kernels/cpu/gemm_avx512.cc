// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, VL, DQ and BW without VNNI.
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
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw")

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_kernels-inl.h"
#include "kernels/cpu/gemm_vector512-inl.h"

struct Avx512 : Vector512 {
  static constexpr bool kHasDot = false;
  static LYNX_INLINE I IntAdd16(I a, I b) { return _mm512_add_epi16(a, b); }
  static LYNX_INLINE I PairProducts(I codes, I x) { return _mm512_maddubs_epi16(codes, x); }
  static LYNX_INLINE I WidenPairs(I v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
  static LYNX_INLINE I FlipSigns(I v) {
    return _mm512_xor_si512(v, _mm512_set1_epi8(int8_t(-128)));
  }
  static LYNX_INLINE I Magnitudes(I v) { return _mm512_abs_epi8(v); }
  static LYNX_INLINE I WithSignOf(I weight, I x) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(weight), _mm512_setzero_si512(), x);
  }
};

}  // namespace

constinit const GemmKernels kGemmAvx512 = MakeKernels<Avx512>();

}  // namespace lynx::cpu

#pragma GCC pop_options
