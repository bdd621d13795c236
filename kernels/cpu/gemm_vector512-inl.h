// SPDX-License-Identifier: Apache-2.0
// AVX-512: a vector is a whole line. 32 registers.
struct Vector512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;

  static constexpr int kBf16Rows = 12, kInt8Rows = 6, kF32Rows = 12;
  static constexpr int Bf16Vectors(int rows) { return rows == 1 ? 1 : 2; }
  static constexpr int Int8Vectors(int rows) { return rows == 1 ? 1 : 2; }

  static LYNX_INLINE void Prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }

  static LYNX_INLINE F Zero() { return _mm512_setzero_ps(); }
  static LYNX_INLINE F Load(const float* p) { return _mm512_loadu_ps(p); }
  static LYNX_INLINE void Store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static LYNX_INLINE F Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static LYNX_INLINE F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static LYNX_INLINE F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static LYNX_INLINE F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static LYNX_INLINE F LoadHalf(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static LYNX_INLINE F ToFloat(I v) { return _mm512_cvtepi32_ps(v); }
  static LYNX_INLINE F LowBf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(LoadInt(p), 16));
  }
  static LYNX_INLINE F HighBf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_and_si512(LoadInt(p), _mm512_set1_epi32(int(0xffff0000u))));
  }

  static LYNX_INLINE I IntZero() { return _mm512_setzero_si512(); }
  static LYNX_INLINE I IntSet(int v) { return _mm512_set1_epi32(v); }
  static LYNX_INLINE I IntAdd(I a, I b) { return _mm512_add_epi32(a, b); }
  static LYNX_INLINE I LoadInt(const void* p) { return _mm512_loadu_si512(p); }
  static LYNX_INLINE I Broadcast4(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
  }
  static LYNX_INLINE I LowNibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static LYNX_INLINE I HighNibbles(I v) { return LowNibbles(_mm512_srli_epi16(v, 4)); }
};
