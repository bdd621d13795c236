// SPDX-License-Identifier: Apache-2.0
// The vector kernels of attention: one segment for up to kMaxTilePairs pairs, and the merge.
//
// K tiles are read as rows of 64 tokens, V tiles as rows of channels, so in both products lanes are
// outputs and a coefficient (a channel of q, a probability) is broadcast. Up to 6 pairs (3 on AVX2)
// are contracted at a time: the even and the odd chains of their outputs fill 24 (12) registers,
// and two BF16 registers of K or V, which cost two instructions each, serve 24 (12) FMAs. A block
// is contracted with all pairs of the task before its softmax: the pairs then hide each other's
// latency. With many rows the loop is bound by FMA; with one it is bound by memory: each block is
// 2 · tile_bytes, and while one tile is contracted the next (V of this block, K of the next, also
// of the next segment or unit) is prefetched.
//
// With AVX512_BF16 an instruction is two links of a chain: rows r and r + 2 of a tile are joined
// into dwords, which takes as many instructions as their conversion to float32, and so are
// coefficients.
//
// With AMX the two products of a block are matrix products of gemm_kernels.h, for all pairs of the
// task at once: a coefficient vector is a row of activations, and a tile of K or V becomes panels
// whose outputs stand in lane positions. That copy costs about as much as the vector kernels spend
// on three or four pairs, so few pairs stay with those.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"

namespace lynx::cpu {

inline constexpr int kMaxTilePairs = 30;  // of a task
inline constexpr int kMinAmxPairs = 8;    // of a task on AMX: an estimate from counting operations

// Arrays of channels hold PaddedHeadDim floats, in lane positions.
constexpr int PaddedHeadDim(int head_dim) { return (head_dim + 31) / 32 * 32; }

// AMX for one thread.
struct AmxScratch {
  const Bf16Kernels* kernels = nullptr;
  int* tile_rows = nullptr;  // see Bf16Kernels::release
  // BF16, as GemmStep::x wants them.
  float* queries = nullptr;        // [padded / 32][num_pairs][32]
  float* probabilities = nullptr;  // [64 / 32][num_pairs][32]
  float* panels = nullptr;         // a tile of K or V, [64, padded] BF16
  float* scores = nullptr;         // [num_pairs, 64]
};

// Pairs that share a sequence, a layer and a KV head, over blocks of one segment.
struct SegmentTask {
  const KvPoolView* pool = nullptr;
  int layer = 0;
  int kv_head = 0;
  const BlockId* block_table = nullptr;
  int block_begin = 0;  // [block_begin, block_end) hold every position seen by any pair
  int block_end = 0;
  float scale = 0;
  const std::byte* ahead = nullptr;  // the tile that is read after these blocks, to be prefetched
  int num_pairs = 0;
  const VisibleRange* visible = nullptr;  // [num_pairs]
  float* q = nullptr;               // [num_pairs, padded], rounded for BF16 tiles; joined in place
  float* max = nullptr;             // out, [num_pairs]; −∞ for a pair that sees nothing
  float* sum = nullptr;             // out, [num_pairs]
  float* out = nullptr;             // out, [num_pairs, padded]
  float* weighted = nullptr;        // scratch, [num_pairs, padded]
  float* padded_value = nullptr;    // scratch, [64, padded], when head_dim % 32 != 0
  const AmxScratch* amx = nullptr;  // null: vectors only
};

// The state of one pair: max, sum and PaddedHeadDim channels.
struct PartialState {
  float* max = nullptr;
  float* sum = nullptr;
  float* out = nullptr;
};

struct AttentionKernels {
  // One pair's q, [head_dim], rounded to dtype in lane positions; channels past it are not written.
  void (*load_query)(const float* q, const KvLayout& layout, float* prepared);
  void (*attend_segment)(const SegmentTask& task);
  // Merges a segment into the total of the segments before it (which starts as −∞, 0, zeros).
  void (*merge_segment)(const PartialState& segment, int padded, const PartialState& total);
  // out[c] = total[lane position of c] / sum, [head_dim].
  void (*store_result)(const float* total, float sum, const KvLayout& layout, float* out);
  const Bf16Kernels* amx = nullptr;  // for SegmentTask::amx; null: none
};

// target is kAvx2 or better.
AttentionKernels SelectAttentionKernels(Target target);

struct AttentionScratch;  // attention_scratch.h

// Backend::Attention with these kernels.
void RunAttention(ThreadPool& pool, const AttentionKernels& kernels, const AttentionParams& params,
                  AttentionScratch& scratch);

}  // namespace lynx::cpu
