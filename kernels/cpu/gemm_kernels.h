// SPDX-License-Identifier: Apache-2.0
// The inner kernels of Gemm, one table for each instruction set.
//
// Weights come in panels of 16 outputs; vector lanes are outputs, so every output is its own
// sequence of operations over k and all instruction sets agree bit for bit. In memory a panel is a
// stream of 64-byte lines of 16 dwords, one dword for each output:
//   BF16       dword = inputs (2r, 2r + 1), low half first; 16 lines are a tile of 32 inputs, which
//              is the B tile of AMX
//   Q8_0       dword = 4 inputs, codes + 128; 8 lines are a block of 32 inputs
//   Q4_0, Q4_1 dword = 4 inputs g in the low nibbles and 4 inputs g + 4 in the high ones; 4 lines
//              are a block
//   F32        dword = one input (a scratch panel, decoded from the file)
// Quantized panels have a second stream of binary16 scales: [block][16], for Q4_1 [block][2][16]
// with the minima behind the scales.
//
// Activations come in groups of a few rows: [block of 32 inputs][row][32]. Inputs past k are zero.
// For BF16 weights they are rounded to BF16; most vector kernels want them as float32, AMX and
// kBf16Avx512 as BF16.
//
// Orders (docs/numerics.md):
//   BF16  for each tile, the even and the odd inputs are two chains of FMA from zero, in order;
//         sum += even + odd.
//   8-bit for each block, an exact integer dot; sum = fma(dot, d_w * d_x, sum); Q4_1 then has
//         sum = fma(m_w, d_x * sum_x, sum).
//   F32   one chain of FMA in the order of k.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/target.h"
#include "lynx/backend.h"

namespace lynx::cpu {

inline constexpr int kPanelOutputs = 16;
inline constexpr int kBlockInputs = 32;
inline constexpr int kLineBytes = 64;

inline constexpr int64_t NumPanels(int64_t n) { return (n + kPanelOutputs - 1) / kPanelOutputs; }
inline constexpr int64_t NumBlocks(int64_t k) { return (k + kBlockInputs - 1) / kBlockInputs; }

// Activations on 8 bits: for each row and block q = round(x / scale), scale = max |x| / 127.
struct Int8Rows {
  int8_t* codes = nullptr;       // [blocks][rows][32]
  float* scales = nullptr;       // [blocks][rows]
  float* scaled_sums = nullptr;  // [blocks][rows], scale * sum of the codes
  int32_t* sums = nullptr;       // [blocks][rows], sum of the codes
};

// Converts the blocks [block_begin, block_end) of a group of rows.
struct ConvertParams {
  const float* x = nullptr;  // [rows, k], dense
  int rows = 0;
  int64_t k = 0;
  int64_t block_begin = 0;
  int64_t block_end = 0;
};

// One group of rows against neighbouring panels.
struct GemmStep {
  int rows = 0;  // at most the table's limit for the kernel
  int panels = 0;
  int64_t blocks = 0;                  // of 32 inputs
  const std::byte* weights = nullptr;  // [panels] of weight_stride bytes
  size_t weight_stride = 0;
  const std::byte* scales = nullptr;  // [panels] of scale_stride bytes
  size_t scale_stride = 0;
  int64_t prefetch_blocks = 0;  // how far ahead of their use weights are fetched
  const float* x = nullptr;     // [blocks][rows][32]: F32 kernels; BF16: what round_rows made
  int* tile_rows = nullptr;     // AMX, of the thread: see Bf16Kernels::release
  Int8Rows q = {};              // 8-bit kernels
  float* acc = nullptr;         // [rows][panels * 16]; F32 continues from it, others store
};

// How many blocks ahead of block b to prefetch, with `panels` panels read side by side. They end
// together; what follows a panel in the order of reading is then the panel `panels` further on.
inline int64_t BlocksAhead(const GemmStep& s, int64_t b, int panels) {
  const int64_t ahead = s.prefetch_blocks;
  const bool past_end = ahead < s.blocks && b + ahead >= s.blocks;
  return past_end ? ahead + (panels - 1) * s.blocks : ahead;
}

struct Bf16Kernels {
  int max_rows = 0;  // of a group
  // Groups but the last of a slab are multiples of it.
  int row_unit = 1;
  // The most rows * k of a slab that stays in the cache while all panels pass; 0: any.
  int64_t max_slab_inputs = 0;
  void (*multiply)(const GemmStep&) = nullptr;
  void (*round_rows)(const ConvertParams&, float* out) = nullptr;
  // AMX. multiply leaves this thread's tile registers configured for *tile_rows rows, 0 when they
  // are not in use, so that steps of as many rows follow each other cheaply. Whoever ran steps on a
  // thread releases the registers and zeroes *tile_rows before the thread does anything else.
  void (*release)() = nullptr;
};

struct GemmKernels {
  using Kernel = void (*)(const GemmStep&);

  int max_int8_rows = 0;  // of a group
  int max_f32_rows = 0;

  Bf16Kernels bf16;
  Kernel q8_0 = nullptr;
  Kernel q4_0 = nullptr;
  Kernel q4_1 = nullptr;
  Kernel f32 = nullptr;

  void (*copy_rows)(const ConvertParams&, float* out) = nullptr;
  void (*quantize_rows)(const ConvertParams&, const Int8Rows& out) = nullptr;
  // out[i][j] = in[j][i]; in is [16][size], out [size][16], size a multiple of 8.
  void (*transpose16)(const float* in, int64_t size, float* out) = nullptr;
};

// The kernels of a target that this processor supports (not kAuto), for a call of so many rows.
GemmKernels GemmKernelsFor(Target target, int rows);

extern const GemmKernels kGemmScalar;      // gemm_ref.cc: the meaning of the others
extern const GemmKernels kGemmAvx2;        // gemm_avx2.cc
extern const GemmKernels kGemmAvx512;      // gemm_avx512.cc
extern const GemmKernels kGemmAvx512Vnni;  // gemm_avx512_vnni.cc
extern const Bf16Kernels kBf16Avx512;      // gemm_avx512_bf16.cc
extern const Bf16Kernels kBf16Amx;         // gemm_amx.cc

}  // namespace lynx::cpu
