// SPDX-License-Identifier: Apache-2.0
// Causal attention over tiles: what is computed, in which order.
//
// One (row, head) is a *pair*. Its keys are the positions it sees: 0 .. p, or the last
// sliding_window of them. They are walked in segments of 512 positions, each in blocks of 64; both
// are fixed by position alone, so neither the batch nor the threads can change a bit:
//
//   block    x_t = (q · k_t) · scale; m' = max(m, max x); a = exp(m − m'); p_t = exp(x_t − m');
//            s = fma(s, a, Σ p_t); o = fma(o, a, Σ p_t · v_t); m = m'; from m = −∞, s = 0, o = 0.
//   segment  M' = max(M, m); a = exp(M − M'), b = exp(m − M'); S = fma(s, b, S · a);
//            O = fma(o, b, O · a); M = M'.
//   result   O / S.
//
// Slots that a pair does not see take part as p = 0; blocks and segments of which it sees nothing
// are left out. Σ p_t runs in 16 virtual lanes over *lane positions* and is joined by SumLanesRef.
//
//   BF16 tiles   q and p are rounded to BF16 (Σ p_t sums the rounded ones). Both products are in
//                tile order: per 32 elements (channels of q · k, tokens of p · v) the even and the
//                odd ones are two fma chains from 0, then c += even + odd, which is what AMX does.
//   float tiles  q and p stay float32; each product is one fma chain over all its elements.
#pragma once

#include <type_traits>

#include "lynx/backend.h"

namespace lynx::cpu {

inline constexpr int kSegmentTokens = 512;
inline constexpr int kSegmentBlocks = kSegmentTokens / kBlockSize;

// Where element i of a vector of channels or tokens lies in the kernels' float arrays. BF16 vectors
// come out of a register as even and odd elements and stay that way: 32 elements are 16 even ones
// followed by 16 odd ones.
template <typename T>
constexpr int LanePosition(int i) {
  if constexpr (std::is_same_v<T, Bf16>) return (i & ~31) | ((i & 1) << 4) | ((i & 31) >> 1);
  return i;
}

// The positions that one row sees: [begin, end).
struct VisibleRange {
  int begin = 0;
  int end = 0;
};
inline VisibleRange Visible(int position, int sliding_window) {
  const bool cut = sliding_window > 0 && position >= sliding_window;
  return {.begin = cut ? position - sliding_window + 1 : 0, .end = position + 1};
}

// The result of one row (relative to its group) and head, written to params.out.
void AttentionRowRef(const AttentionParams& params, const RowGroup& group, int row, int head);

}  // namespace lynx::cpu
