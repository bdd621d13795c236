// SPDX-License-Identifier: Apache-2.0
// The AMX instructions. They are written out, because those of GCC 12's <immintrin.h> do not tell
// the compiler which memory they read (of a configuration: 8 of its 64 bytes), and want the numbers
// of tiles as literals. The order of the assembler's operands is that of AT&T: sources first.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/tile_config.h"

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512vl,avx512dq,avx512bw,amx-tile,amx-bf16")

namespace lynx::cpu {
namespace {

#include "kernels/cpu/gemm_convert-inl.h"
#include "kernels/cpu/gemm_tiles-inl.h"

struct AmxTiles {
  static void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  static void Release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows of the tile lie stride bytes apart.
  template <int kTile>
  static void Load(const std::byte* base, size_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(base), "r"(stride) : "memory");
  }
  template <int kTile>
  static void Store(std::byte* base, size_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)"
                 :
                 : "i"(kTile), "r"(base), "r"(stride)
                 : "memory");
  }
  // kC += kA · kB, of pairs of BF16.
  template <int kC, int kA, int kB>
  static void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace

constinit const Bf16Kernels kBf16Amx = MakeTileKernels<AmxTiles>();

}  // namespace lynx::cpu

#pragma GCC pop_options
