// SPDX-License-Identifier: Apache-2.0
// AVX-512 with BF16: VDPBF16PS adds the product of the high halves of two dwords to a float32, then
// that of the low halves, each as an FMA would, with subnormals flushed. So with inputs k in the
// high half and k + 2 in the low one it is two links of the even or the odd chain of a tile, and a
// chain takes half the instructions.
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
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,avx512bf16")

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_kernels-inl.h"
#include "kernels/cpu/gemm_vector512-inl.h"

constexpr int kRowDwords = kBlockInputs / 2;  // of a row's block

// Bf16Bits of 16 numbers.
LYNX_INLINE __m512i Bf16BitsOf(const float* in) {
  const __m512 x = _mm512_loadu_ps(in);
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i rounded =
      _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_and_si512(rounded, _mm512_set1_epi32(int(0xffff0000u)));
}

// Dword 2 g + odd has input 4 g + odd in the high half and 4 g + odd + 2 in the low one.
inline void PairRows(const ConvertParams& p, float* out) {
  const __m512i firsts = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);  // of two inputs each
  const __m512i seconds = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
  ForEachBlock(
      p, [=](const float* in, int64_t index) __attribute__((always_inline)) {
        const __m512i a = Bf16BitsOf(in), b = Bf16BitsOf(in + kBlockInputs / 2);
        const __m512i high = _mm512_permutex2var_epi64(a, firsts, b);
        const __m512i low = _mm512_srli_epi32(_mm512_permutex2var_epi64(a, seconds, b), 16);
        _mm512_storeu_si512(out + index * kRowDwords, _mm512_or_si512(high, low));
      });
}

// The even and odd inputs of two lines as PairRows has them.
LYNX_INLINE void LoadPairs(const std::byte* lines, __m512bh& even, __m512bh& odd) {
  constexpr __mmask32 kHighHalves = 0xaaaaaaaa;
  __m512i first = Vector512::LoadInt(lines);                // inputs 4 g, 4 g + 1
  __m512i second = Vector512::LoadInt(lines + kLineBytes);  // and 4 g + 2, 4 g + 3
  asm("" : "+v"(first), "+v"(second));                      // GCC would load each of them twice
  even = (__m512bh)_mm512_mask_blend_epi16(kHighHalves, second, _mm512_slli_epi32(first, 16));
  odd = (__m512bh)_mm512_mask_blend_epi16(kHighHalves, _mm512_srli_epi32(second, 16), first);
}

LYNX_INLINE __m512bh BroadcastPair(const float* dword) {
  return (__m512bh)_mm512_castps_si512(Vector512::Broadcast(dword));
}

template <int kRows, int kVectors>
LYNX_INLINE void PairTile(const GemmStep& s, int first) {
  using V = Vector512;
  constexpr int kSums = kRows * kVectors;
  constexpr int64_t kTileBytes = kBlockInputs / 2 * kLineBytes;
  Streams<V, kVectors> w(s.weights, s.weight_stride, first, 4);
  Unroll<kSums>([&](auto i) __attribute__((always_inline)) {
    V::Store(Acc<V>(s, i / kVectors, first + i % kVectors), V::Zero());
  });
  const float* x = s.x;
  for (int64_t b = 0; b < s.blocks; ++b, x += kRows * kRowDwords) {
    const int64_t ahead = BlocksAhead(s, b, kPanelsAtOnce<V, kVectors>) * kTileBytes;
    __m512 sums[2][kSums];
    Unroll<kSums>([&](auto i)
                      __attribute__((always_inline)) { sums[0][i] = sums[1][i] = V::Zero(); });
#pragma GCC unroll 8
    for (int line = 0; line < kRowDwords; line += 2) {
      __m512bh inputs[2][kVectors];
      Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
        const std::byte* at = w.at[v] + line * kLineBytes;
        V::Prefetch(at + ahead);
        V::Prefetch(at + ahead + kLineBytes);
        LoadPairs(at, inputs[0][v], inputs[1][v]);
      });
      Unroll<2 * kRows>([&](auto i) __attribute__((always_inline)) {
        constexpr int r = i / 2, odd = i % 2;
        const __m512bh c = BroadcastPair(x + r * kRowDwords + line + odd);
        Unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
          __m512& sum = sums[odd][r * kVectors + v];
          sum = _mm512_dpbf16_ps(sum, c, inputs[odd][v]);
        });
      });
    }
    Unroll<kSums>([&](auto i) __attribute__((always_inline)) {
      float* acc = Acc<V>(s, i / kVectors, first + i % kVectors);
      V::Store(acc, V::Add(V::Load(acc), V::Add(sums[0][i], sums[1][i])));
    });
    Unroll<kVectors>([&](auto v) __attribute__((always_inline)) { w.at[v] += kTileBytes; });
  }
}

struct PairProduct {
  static constexpr int kMaxRows = 5;
  static constexpr int Vectors(int rows) { return rows == 1 ? 1 : 2; }
  template <int kRows, int kVectors>
  static void Run(const GemmStep& s, int first) {
    PairTile<kRows, kVectors>(s, first);
  }
};

}  // namespace

constinit const Bf16Kernels kBf16Avx512 = {.max_rows = PairProduct::kMaxRows,
                                           .multiply = RunStep<Vector512, PairProduct>,
                                           .round_rows = PairRows};

}  // namespace lynx::cpu

#pragma GCC pop_options
