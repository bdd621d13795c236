// SPDX-License-Identifier: Apache-2.0
// The tensor core's warp-wide products, behind one small wrapper. Every function is reached by all
// 32 lanes of a warp; fragments are laid out as PTX's mma.sync and ldmatrix define them (g = lane /
// 4, t = lane % 4):
//
//   A  16 x 16 BF16   a[0] (g, 2t..2t+1)  a[1] (g + 8, …)  a[2] (g, 2t + 8..)  a[3] (g + 8, 2t
//   + 8..) B  16 x 8 BF16    b[0] (k 2t..2t+1, n g)  b[1] (k 2t + 8.., n g) C  16 x 8 FP32 c[0..1]
//   (g, 2t..2t+1)  c[2..3] (g + 8, 2t..2t+1)
//
// and the same for 8-bit integers with k = 32: a register holds 4 neighbours (4t..4t+3, + 16).
//
// The order in which an mma adds its 16 products is the hardware's; it depends on nothing but the
// positions in k, so a row's result never depends on the other rows of the tile. The integer
// product is exact.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lynx::cuda {

#ifndef LYNX_SIMT

// c += A · B, BF16 operands, FP32 sums.
__device__ inline void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += A · B, signed 8-bit operands, 32-bit sums: [16, 32] x [32, 8].
__device__ inline void MmaInt8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices of 16-bit elements; lane i names the start (16-byte aligned) of row
// i % 8 of matrix i / 8. Register j holds elements (g, 2t..2t+1) of matrix j; transposed:
// (2t..2t+1, g).
__device__ inline void LoadMatrix4(uint32_t (&r)[4], Shared<const Bf16> row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void LoadMatrix4Transposed(uint32_t (&r)[4], Shared<const Bf16> row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

#endif  // LYNX_SIMT

// Two BF16 in one register, the first in the low half.
__device__ inline uint32_t PackBf16(Bf16 first, Bf16 second) {
  return uint32_t{first.bits} | uint32_t{second.bits} << 16;
}

// The same of two numbers that are not NaN, rounded to nearest even.
__device__ inline uint32_t RoundToBf16(float first, float second) {
#ifdef LYNX_SIMT
  return PackBf16(ToBf16(first), ToBf16(second));
#else
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#endif
}

}  // namespace lynx::cuda
