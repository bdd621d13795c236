// SPDX-License-Identifier: Apache-2.0
// The operations of a forward pass and of the plane format, on one device.
//
// An interface without fields; CpuBackend and CudaBackend are final and define each method in a
// file of its own. Parameters are plain structs; the shape stands behind every pointer. All
// activations are float32, row-major, dense unless a stride is given.
//
// Memory: pointers are to the device's memory, except where "host" is said; spans are the host's.
// A device takes memory at start-up only (Allocate, PackWeight, Reserve), never in a step.
//
// A step is BeginForward, the operations of its layers, EndForward. On a device operations are
// queued and run later, in order; the host sees nothing of them before Logits or EndForward has
// returned.
//
// Contract of every method (docs/numerics.md): the result for a row depends only on that row's
// inputs, bit for bit; not on the other rows, on their number, on thread count or on the
// instruction set. Methods never fail: shapes were checked by the caller, bugs abort.
//
// Threads: everything above the line "plane codec" is called from one engine thread (the back-end
// forks and joins its own pool inside). What stands below it works for the calling thread alone and
// may be called from any thread at the same time as anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lynx/choice.h"
#include "lynx/kv_layout.h"
#include "lynx/types.h"

namespace lynx {

class Backend;
class DeviceChunks;  // lynx/device_chunks.h

// Memory of a back-end, which outlives it. Null: none.
struct FreeBuffer {
  Backend* backend = nullptr;
  size_t bytes = 0;
  void operator()(std::byte* memory) const;
};
using Buffer = std::unique_ptr<std::byte, FreeBuffer>;

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
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS
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
  // What Backend::WrapPacked takes, or nothing. Host memory.
  virtual std::span<const std::byte> packed() const { return {}; }
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
  int position = 0;                      // of the first row, in these blocks: drafts may skip some
  const BlockId* block_table = nullptr;  // blocks for positions 0 .. position + num_rows - 1
};

// A ragged batch: rows of several sequences, in row groups.
struct ForwardBatch {
  std::span<const TokenId> tokens;     // [rows]
  std::span<const int32_t> positions;  // [rows]
  std::span<const RowGroup> groups;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // [logit_rows.size()], or empty: all logits are wanted. Only where the back-end chooses tokens.
  std::span<RowChoice> choices = {};
};

// The largest step that a back-end will see.
struct StepLimits {
  int max_rows = 0;
  int max_position = 0;  // exclusive
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int vocab_size = 0;
  int sliding_window = 0;  // 0 = none
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

struct LogitsParams {
  const float* x = nullptr;  // [rows, k]
  int rows = 0;
  int64_t k = 0;
  GemmOutput head;               // y: host memory
  std::span<RowChoice> choices;  // [rows] or empty
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

  // The device's memory is the host's: its pointers may be followed.
  virtual bool is_host() const = 0;
  // Zeroed, 256-byte aligned; null when there is not so much.
  virtual Buffer Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory, size_t bytes) = 0;
  // What Allocate could give now. With num_sharers > 1 at most what is left of this process's equal
  // part of the device, the same whatever the other processes have taken yet.
  virtual int64_t free_bytes(int num_sharers) const = 0;
  // Copies from and to host memory, after all that was queued, and waits.
  virtual void Upload(void* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const void* from, size_t bytes) = 0;

  // Packs a matrix that lies in host memory. With kF32 the result reads the view's memory, which
  // must then outlive it (and so must row_order). K is padded with zeros as the kernels need. Null
  // when there is not enough memory.
  virtual std::unique_ptr<Weight> PackWeight(const WeightView& view) = 0;
  // The same for a matrix whose rows Embed takes. The CPU's reads the view's memory.
  virtual std::unique_ptr<Weight> PackEmbedding(const WeightView& view) = 0;
  // Names how PackWeight lays matrices out, or null when they cannot be kept for another process.
  // What packed() of a weight holds depends on nothing but this name and the view.
  virtual const char* packed_layout() const { return nullptr; }
  // The weight that PackWeight makes of the view, from its packed bytes, which are read where they
  // lie and outlive it; the view's data is not used. packed: 64-byte aligned. Null when their
  // number is not right.
  virtual std::unique_ptr<Weight> WrapPacked(const WeightView&, std::span<const std::byte>) {
    return nullptr;
  }

  // Takes what steps up to these limits need. Once, after the weights, before the first step.
  // Null, or why such steps cannot be run here (static text).
  virtual const char* Reserve(const StepLimits& limits) = 0;

  // Later calls refer to these very spans. They stay as they are until EndForward.
  virtual void BeginForward(const ForwardBatch& batch) = 0;
  virtual void EndForward() = 0;

  // out[r, :] = table[ids[r], :], decoded to float32. table: of PackEmbedding.
  virtual void Embed(const Weight& table, std::span<const TokenId> ids, float* out) = 0;

  // y[i, :] = x[rows[i], :]
  virtual void GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) = 0;

  // y = x / rms(x) * weight over the last dimension; n contiguous vectors of length dim.
  virtual void RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
                       float* y) = 0;

  // For each output: y[r, :] = x[r, :] · weightᵀ + bias. x is [rows, k], shared by all outputs.
  virtual void Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) = 0;

  // The same for one output whose rows go to the host, or whose tokens are chosen on the device.
  virtual void Logits(const LogitsParams& params) = 0;
  virtual bool chooses_tokens() const = 0;

  // Rotates in place, half-split pairs (i, i + head_dim / 2); positions[r] is the row's position.
  // positions: host.
  virtual void Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
                    const RopeTable& table) = 0;

  // Rounds K and V to the pool's type and stores them at their slots.
  virtual void KvWrite(const KvWriteParams& params) = 0;

  // From here on the plane codec may read what KvWrite has queued for this layer.
  virtual void KvWritten(int layer) = 0;

  // Causal (and sliding-window) attention of every row over its sequence's blocks.
  virtual void Attention(const AttentionParams& params) = 0;

  // y = silu(gate) * up, element-wise.
  virtual void SiluMul(const float* gate, const float* up, int64_t n, float* y) = 0;

  // ---- plane codec, and what else moves KV ------------------------------------------------------
  // A batch of pages, all of one layer; tiles are the device's, planes and results the host's. They
  // see what was queued before the layer's last KvWritten.
  virtual void PlaneEncode(std::span<const PlaneEncodeParams> pages) const = 0;
  virtual void PlaneDecode(std::span<const PlaneDecodeParams> pages) const = 0;
  // How many pages a batch should hold.
  virtual int max_plane_batch() const = 0;

  // Copies whole tiles of a layer to and from host memory, [tiles.size()][tile_bytes].
  virtual void ReadTiles(int layer, std::span<const std::byte* const> tiles, size_t tile_bytes,
                         std::byte* to) const = 0;
  virtual void WriteTiles(std::span<std::byte* const> tiles, size_t tile_bytes,
                          const std::byte* from) const = 0;

  // What keeps encoded planes in the device's memory; null on the host. After Reserve.
  virtual DeviceChunks* device_chunks() const = 0;
};

inline void FreeBuffer::operator()(std::byte* memory) const { backend->Free(memory, bytes); }

}  // namespace lynx
