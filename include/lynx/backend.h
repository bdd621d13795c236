// SPDX-License-Identifier: Apache-2.0
// The operations of a forward pass and of the plane format, on one device.
//
// An interface without fields; CpuBackend and CudaBackend are final and define each method in a
// file of its own. Parameters are plain structs; the shape stands behind every pointer. All
// activations are float32, row-major, dense unless a stride is given.
//
// Contract of every method (docs/numerics.md): the result for a row depends only on that row's
// inputs, bit for bit; not on the other rows, on their number, on thread count or on the
// instruction set. Methods never fail: shapes were checked by the caller, bugs abort.
//
// Threads: everything above the line "plane codec" is called from one engine thread (the back-end
// forks and joins its own pool inside). The plane codec runs on the calling thread alone and may
// be called from any thread at the same time as anything else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lynx/kv_layout.h"
#include "lynx/types.h"

namespace lynx {

// kFast: BF16 activations in tile order for BF16 weights, 8-bit activations for quantized weights,
// BF16 KV. kF32: float32 activations, weights decoded inside the kernel, K in order, float32 KV.
enum class Compute : uint8_t { kFast = 0, kF32 = 1 };

// Element types of weight files (ggml's names). Block formats cover 32 (or 256) elements of a row.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBf16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};

// A matrix as it lies in a (mapped) file: n rows (outputs) of k elements (inputs).
struct WeightView {
  WeightType type = WeightType::kF32;
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* data = nullptr;  // [n] rows of row_bytes
  size_t row_bytes = 0;
  // Output i is file row row_order[i]; null = identity. Undoes the q/k permutation of llama GGUF.
  const int32_t* row_order = nullptr;
};

// A matrix packed by a back-end for its kernels. Opaque; immutable; any thread may read it.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual int64_t n() const = 0;        // outputs
  virtual int64_t k() const = 0;        // inputs
  virtual WeightType type() const = 0;  // as kept in memory
  virtual size_t bytes() const = 0;     // memory that this object owns (0 if it reads the file)
};

struct GemmOutput {
  const Weight* weight = nullptr;  // [n, k]
  const float* bias = nullptr;     // [n] or null
  float* y = nullptr;              // [rows, ldy]
  int64_t ldy = 0;
  bool accumulate = false;  // y += result instead of y = result (the residual stream)
};

struct RopeTable {
  const float* cos = nullptr;  // [max_position, head_dim / 2], the attention factor folded in
  const float* sin = nullptr;  // same
};

// Consecutive rows of a ragged batch that belong to one sequence, at consecutive positions. A
// prefill chunk, a decode row, a draft row and the rows of a verification are all row groups.
struct RowGroup {
  int row_begin = 0;
  int num_rows = 0;
  int position = 0;                      // of the first row
  const BlockId* block_table = nullptr;  // blocks for positions 0 .. position + num_rows - 1
};

struct AttentionParams {
  const float* q = nullptr;  // [rows, num_heads, head_dim], after RoPE
  float* out = nullptr;      // [rows, num_heads, head_dim]
  int num_heads = 0;
  int layer = 0;
  float scale = 0;         // 1 / sqrt(head_dim)
  int sliding_window = 0;  // 0 = none
  KvPoolView pool;
  std::span<const RowGroup> groups;  // the K and V of their rows are already in the pool
};

struct KvWriteParams {
  const float* k = nullptr;  // [rows, num_kv_heads, head_dim], after RoPE
  const float* v = nullptr;  // [rows, num_kv_heads, head_dim]
  int layer = 0;
  KvPoolView pool;
  std::span<const RowGroup> groups;
};

// ---- plane codec (docs/plane_format.md) ---------------------------------------------------------
struct PlaneEncodeParams;  // lynx/plane_format.h
struct PlaneDecodeParams;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;    // "cpu", "cuda"
  virtual const char* target() const = 0;  // "avx512", "avx2", "scalar", "sm_90" …
  virtual Compute compute() const = 0;
  virtual int num_threads() const = 0;

  // Packs a matrix. With kF32 the result reads the view's memory, which must then outlive it (and
  // so must row_order). K is padded with zeros as the kernels need.
  virtual std::unique_ptr<Weight> PackWeight(const WeightView& view) = 0;

  // out[r, :] = table[ids[r], :], decoded to float32. table is an unpacked view.
  virtual void Embed(const WeightView& table, std::span<const TokenId> ids, float* out) = 0;

  // y = x / rms(x) * weight over the last dimension; n contiguous vectors of length dim.
  virtual void RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
                       float* y) = 0;

  // For each output: y[r, :] = x[r, :] · weightᵀ + bias. x is [rows, k], shared by all outputs.
  virtual void Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) = 0;

  // Rotates in place, half-split pairs (i, i + head_dim / 2); positions[r] is the row's position.
  virtual void Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
                    const RopeTable& table) = 0;

  // Rounds K and V to the pool's type and stores them at their slots.
  virtual void KvWrite(const KvWriteParams& params) = 0;

  // Causal (and sliding-window) attention of every row over its sequence's blocks.
  virtual void Attention(const AttentionParams& params) = 0;

  // y = silu(gate) * up, element-wise.
  virtual void SiluMul(const float* gate, const float* up, int64_t n, float* y) = 0;

  virtual void PlaneEncode(const PlaneEncodeParams& params) const = 0;
  virtual void PlaneDecode(const PlaneDecodeParams& params) const = 0;
};

}  // namespace lynx
