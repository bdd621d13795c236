// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: a vector is half a line. 16 registers.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/gemm_kernels.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_kernels-inl.h"

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;

  static constexpr int kBf16Rows = 6, kInt8Rows = 4, kF32Rows = 6;
  static constexpr int Bf16Vectors(int) { return 2; }
  static constexpr int Int8Vectors(int rows) { return rows <= 2 ? 2 : 1; }

  static LYNX_INLINE void Prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }

  static LYNX_INLINE F Zero() { return _mm256_setzero_ps(); }
  static LYNX_INLINE F Load(const float* p) { return _mm256_loadu_ps(p); }
  static LYNX_INLINE void Store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static LYNX_INLINE F Broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static LYNX_INLINE F Add(F a, F b) { return _mm256_add_ps(a, b); }
  static LYNX_INLINE F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static LYNX_INLINE F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static LYNX_INLINE F LoadHalf(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static LYNX_INLINE F ToFloat(I v) { return _mm256_cvtepi32_ps(v); }
  static LYNX_INLINE F LowBf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(LoadInt(p), 16));
  }
  static LYNX_INLINE F HighBf16(const void* p) {
    return _mm256_castsi256_ps(_mm256_and_si256(LoadInt(p), _mm256_set1_epi32(int(0xffff0000u))));
  }

  static LYNX_INLINE I IntZero() { return _mm256_setzero_si256(); }
  static LYNX_INLINE I IntSet(int v) { return _mm256_set1_epi32(v); }
  static LYNX_INLINE I IntAdd(I a, I b) { return _mm256_add_epi32(a, b); }
  static LYNX_INLINE I LoadInt(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static LYNX_INLINE I Broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
  }
  static LYNX_INLINE I LowNibbles(I v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static LYNX_INLINE I HighNibbles(I v) { return LowNibbles(_mm256_srli_epi16(v, 4)); }

  static constexpr bool kHasDot = false;
  static LYNX_INLINE I IntAdd16(I a, I b) { return _mm256_add_epi16(a, b); }
  static LYNX_INLINE I PairProducts(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
  static LYNX_INLINE I WidenPairs(I v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }
  static LYNX_INLINE I FlipSigns(I v) {
    return _mm256_xor_si256(v, _mm256_set1_epi8(int8_t(-128)));
  }
  static LYNX_INLINE I Magnitudes(I v) { return _mm256_abs_epi8(v); }
  static LYNX_INLINE I WithSignOf(I weight, I x) { return _mm256_sign_epi8(x, weight); }
};

}  // namespace

constinit const GemmKernels kGemmAvx2 = MakeKernels<Avx2>();

}  // namespace lynx::cpu

#pragma GCC pop_options
