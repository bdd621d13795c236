// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_kernels.h"

namespace lynx::cpu {
namespace {

// The fewest rows that are multiplied on AMX. Up to 4 the vector kernels are bound by memory just
// the same: on an Emerald Rapids core all matrices of SmolLM2 took 13.5-15.8, 13.0 and 15.2 ms at
// 1, 2 and 4 rows with AVX-512 and 15.9 ms with AMX; at 8 rows 23.8 and 16.0 ms.
constexpr int kMinTileRows = 5;
// The same of kBf16Avx512, whose groups are smaller than those of the FMA kernels: on a Zen 5 core
// all matrices took 22 instead of 19 ms at 16 rows, 54 instead of 74 at 64, 300 instead of 490 at
// 512 (without the head).
constexpr int kMinPairRows = 32;

}  // namespace

GemmKernels GemmKernelsFor(Target target, int rows) {
  switch (target) {
    case Target::kAvx2:
      return kGemmAvx2;
    case Target::kAvx512:
      return kGemmAvx512;
    case Target::kAvx512Vnni:
      return kGemmAvx512Vnni;
    case Target::kAvx512Bf16:
    case Target::kAmx: {
      GemmKernels kernels = kGemmAvx512Vnni;
      if (target == Target::kAmx) {
        if (rows >= kMinTileRows) kernels.bf16 = kBf16Amx;
      } else if (rows >= kMinPairRows) {
        kernels.bf16 = kBf16Avx512;
      }
      return kernels;
    }
    default:
      return kGemmScalar;
  }
}

}  // namespace lynx::cpu
