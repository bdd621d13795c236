// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/attention_segment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_segment.cc"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"

#ifndef LYNX_KERNELS_CPU_ATTENTION_SEGMENT_ONCE_
#define LYNX_KERNELS_CPU_ATTENTION_SEGMENT_ONCE_
namespace lynx::cpu {
namespace {

[[maybe_unused]] constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The token at each lane position of a block.
template <typename T>
constexpr std::array<float, kBlockSize> TokenIndex() {
  std::array<float, kBlockSize> index{};
  for (int t = 0; t < kBlockSize; ++t) index[LanePosition<T>(t)] = static_cast<float>(t);
  return index;
}
template <typename T>
alignas(64) constexpr std::array<float, kBlockSize> kTokenIndex = TokenIndex<T>();

}  // namespace
}  // namespace lynx::cpu
#endif

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

// Register tile: kTilePairs pairs × kTileLanes lanes of accumulators. Three pairs on AVX2 spill two
// of 12 accumulators, which still beats reading the tile twice for the one pair that would be left.
constexpr int kTilePairs = kParts == 1 ? 6 : 2;
constexpr int kMaxLastPairs = kParts == 1 ? 6 : 3;
constexpr int kTileLanes = kParts == 1 ? 64 : 32;

// Rows of `lanes` elements, one row every `stride` elements, and as many rows of the tile that is
// needed next, to prefetch.
template <typename T>
struct Rows {
  const T* data;
  const T* ahead;
  size_t stride;
  Rows Skip(size_t rows, size_t lanes = 0) const {
    return {data + rows * stride + lanes, ahead + rows * stride + lanes, stride};
  }
};

// acc[r][i] = fma(coefficient[r][j], row j, acc[r][i]) for j = 0 .. n-1, every step-th row.
template <int R, int V, typename T>
HWY_INLINE void Chain(Rows<T> rows, int step, int n, const float* coefficient, size_t ldc,
                      F16 (&acc)[R][V]) {
  constexpr int kLineElements = 64 / sizeof(T);
  for (int j = 0; j < n; ++j) {
    F16 v[V];
    Unroll<V / 2>([&](auto i)
                      LYNX_LAMBDA { LoadPair(rows.data + 32 * i, v[2 * i], v[2 * i + 1]); });
    Unroll<V * kLanes / kLineElements>(
        [&](auto i) LYNX_LAMBDA { hwy::Prefetch(rows.ahead + kLineElements * i); });
    Unroll<R>([&](auto r) LYNX_LAMBDA {
      const F16 c = SetAll(coefficient[r * ldc + j]);
      Unroll<V>([&](auto i) LYNX_LAMBDA { acc[r][i] = Fma(c, v[i], acc[r][i]); });
    });
    rows = rows.Skip(step);
  }
}

template <int R, int V>
HWY_INLINE void SetZero(F16 (&acc)[R][V]) {
  Unroll<R * V>([&](auto i) LYNX_LAMBDA { acc[i / V][i % V] = SetAll(0.0f); });
}

// For R pairs and V · 16 lanes: finish(r, i, Σ_j coefficient[r][j] · row j) in the order of T.
// coefficient is in lane positions, [R, ldc].
template <int R, int V, typename T, typename Finish>
HWY_INLINE void Contract(const Rows<T>& rows, int n, const float* coefficient, size_t ldc,
                         const Finish& finish) {
  F16 acc[R][V];
  if constexpr (std::is_same_v<T, float>) {
    SetZero(acc);
    Chain(rows, 1, n, coefficient, ldc, acc);
    Unroll<R * V>([&](auto i) LYNX_LAMBDA {
      finish(std::integral_constant<int, i / V>(), std::integral_constant<int, i % V>(),
             acc[i / V][i % V]);
    });
  } else {
    // One chain at a time leaves the registers to it; the even one waits in memory.
    HWY_ALIGN float even[R * V * kLanes], total[R * V * kLanes] = {};
    for (int k = 0; k < n; k += 32) {
      const int half = std::min(n - k, 32) / 2;
      SetZero(acc);
      Chain(rows.Skip(k), 2, half, coefficient + k, ldc, acc);
      Unroll<R * V>([&](auto i) LYNX_LAMBDA { StoreLanes(acc[i / V][i % V], even + i * kLanes); });
      SetZero(acc);
      Chain(rows.Skip(k + 1), 2, half, coefficient + k + kLanes, ldc, acc);
      const bool last = k + 32 >= n;
      Unroll<R * V>([&](auto i) LYNX_LAMBDA {
        const F16 tile = Add(LoadLanes(even + i * kLanes), acc[i / V][i % V]);
        const F16 c = Add(LoadLanes(total + i * kLanes), tile);
        if (last) {
          finish(std::integral_constant<int, i / V>(), std::integral_constant<int, i % V>(), c);
        } else {
          StoreLanes(c, total + i * kLanes);
        }
      });
    }
  }
}

// Contract over all lanes of a row, a multiple of 32; finish(r, lane offset, value).
template <int R, typename T, typename Finish>
HWY_INLINE void ContractRows(const Rows<T>& rows, int lanes, int n, const float* coefficient,
                             size_t ldc, const Finish& finish) {
  int lane = 0;
  for (; lane + kTileLanes <= lanes; lane += kTileLanes) {
    Contract<R, kTileLanes / kLanes>(rows.Skip(0, lane), n, coefficient, ldc,
                                     [&](auto r, auto i, const F16& v)
                                         LYNX_LAMBDA { finish(r, lane + i * kLanes, v); });
  }
  if constexpr (kTileLanes > 32) {
    if (lane < lanes) {
      Contract<R, 2>(rows.Skip(0, lane), n, coefficient, ldc,
                     [&](auto r, auto i, const F16& v)
                         LYNX_LAMBDA { finish(r, lane + i * kLanes, v); });
    }
  }
}

// Scores of a block become probabilities, in place; returns the new maximum. sum gets Σ p.
template <typename T>
HWY_INLINE float Softmax(float* scores, float scale, float max, int begin, int end, float& sum) {
  constexpr int kVectors = kBlockSize / kLanes;
  const bool partial = begin > 0 || end < kBlockSize;
  const float first = static_cast<float>(begin), last = static_cast<float>(end);
  const auto index = [](int i) LYNX_LAMBDA { return LoadLanes(&kTokenIndex<T>[i * kLanes]); };
  F16 x[kVectors];
  Unroll<kVectors>([&](auto i) LYNX_LAMBDA {
    x[i] = Mul(LoadLanes(scores + i * kLanes), SetAll(scale));
    if (partial) x[i] = IfInRange(index(i), first, last, x[i], SetAll(kMinusInfinity));
  });
  max = MaxRef(max, MaxLanes(Max(Max(x[0], x[1]), Max(x[2], x[3]))));
  F16 lanes = SetAll(0.0f);
  Unroll<kVectors>([&](auto i) LYNX_LAMBDA {
    F16 p = Exp(Sub(x[i], SetAll(max)));
    if constexpr (std::is_same_v<T, Bf16>) p = RoundToBf16(p);
    if (partial) p = IfInRange(index(i), first, last, p, SetAll(0.0f));
    StoreLanes(p, scores + i * kLanes);
    lanes = Add(lanes, p);
  });
  sum = SumLanes(lanes);
  return max;
}

// One block for R pairs, the first of which is `pair`.
template <int R, typename T>
void AttendBlock(const SegmentTask& task, int pair, int block, const Rows<T>& key,
                 const Rows<T>& value) {
  const int head_dim = task.pool->layout.head_dim, padded = PaddedHeadDim(head_dim);
  int begin[R], end[R];
  bool any = false;
  for (int r = 0; r < R; ++r) {
    begin[r] = std::max(task.visible[pair + r].begin - block * kBlockSize, 0);
    end[r] = std::min(task.visible[pair + r].end - block * kBlockSize, kBlockSize);
    any |= begin[r] < end[r];
  }
  if (!any) return;

  HWY_ALIGN float scores[R * kBlockSize];
  ContractRows<R>(key, kBlockSize, head_dim, task.q + size_t(pair) * padded, padded,
                  [&](auto r, int lane, const F16& v)
                      LYNX_LAMBDA { StoreLanes(v, scores + r * kBlockSize + lane); });

  float keep[kLanes] = {}, sum[R];
  for (int r = 0; r < R; ++r) {
    float* p = scores + r * kBlockSize;
    if (begin[r] < end[r]) {
      const float old = task.max[pair + r];
      task.max[pair + r] = Softmax<T>(p, task.scale, old, begin[r], end[r], sum[r]);
      keep[r] = old - task.max[pair + r];
    } else {
      std::fill_n(p, kBlockSize, 0.0f);
    }
  }
  StoreLanes(Exp(LoadLanes(keep)), keep);
  for (int r = 0; r < R; ++r) {
    if (begin[r] < end[r]) task.sum[pair + r] = std::fma(task.sum[pair + r], keep[r], sum[r]);
  }
  ContractRows<R>(value, padded, kBlockSize, scores, kBlockSize,
                  [&](auto r, int lane, const F16& v) LYNX_LAMBDA {
                    if (begin[r] >= end[r]) return;
                    float* out = task.out + size_t(pair + r) * padded + lane;
                    StoreLanes(Fma(LoadLanes(out), SetAll(keep[r]), v), out);
                  });
}

// Calls AttendBlock<num_pairs>, num_pairs <= R.
template <int R, typename T>
HWY_INLINE void AttendBlockFor(int num_pairs, const SegmentTask& task, int pair, int block,
                               const Rows<T>& key, const Rows<T>& value) {
  if constexpr (R > 1) {
    if (num_pairs < R) {
      return AttendBlockFor<R - 1>(num_pairs, task, pair, block, key, value);
    }
  }
  AttendBlock<R>(task, pair, block, key, value);
}

// The rows of a V tile, widened with zeros to a multiple of 32 channels.
template <typename T>
Rows<T> ValueRows(const SegmentTask& task, const T* tile, const T* ahead) {
  const size_t head_dim = task.pool->layout.head_dim, padded = PaddedHeadDim(head_dim);
  if (head_dim == padded) return {tile, ahead, head_dim};
  T* copy = reinterpret_cast<T*>(task.padded_value);
  for (size_t t = 0; t < kBlockSize; ++t) {
    std::memcpy(copy + t * padded, tile + t * head_dim, head_dim * sizeof(T));
    std::memset(static_cast<void*>(copy + t * padded + head_dim), 0,
                (padded - head_dim) * sizeof(T));
  }
  return {copy, copy, padded};
}

template <typename T>
void AttendSegmentOf(const SegmentTask& task) {
  const int padded = PaddedHeadDim(task.pool->layout.head_dim);
  std::fill_n(task.max, task.num_pairs, kMinusInfinity);
  std::fill_n(task.sum, task.num_pairs, 0.0f);
  std::fill_n(task.out, size_t(task.num_pairs) * padded, 0.0f);
  const auto tile = [&](int block, KvKind kind) LYNX_LAMBDA {
    return reinterpret_cast<const T*>(
        task.pool->tile(task.block_table[block], task.layer, kind, task.kv_head));
  };
  for (int b = task.block_begin; b < task.block_end; ++b) {
    const T* value = tile(b, KvKind::kValue);
    const Rows<T> key_rows = {tile(b, KvKind::kKey), value, kBlockSize};
    const Rows<T> value_rows =
        ValueRows(task, value, tile(std::min(b + 1, task.block_end - 1), KvKind::kKey));
    for (int pair = 0, n; pair < task.num_pairs; pair += n) {
      n = task.num_pairs - pair;
      if (n > kMaxLastPairs) n = kTilePairs;
      AttendBlockFor<kMaxLastPairs>(n, task, pair, b, key_rows, value_rows);
    }
  }
}

void AttendSegment(const SegmentTask& task) {
  if (task.pool->layout.dtype == KvDtype::kBf16) {
    AttendSegmentOf<Bf16>(task);
  } else {
    AttendSegmentOf<float>(task);
  }
}

void MergeSegment(const PartialState& segment, int padded, const PartialState& total) {
  const float max = MaxRef(*total.max, *segment.max);
  float factors[kLanes] = {*total.max - max, *segment.max - max};
  StoreLanes(Exp(LoadLanes(factors)), factors);
  *total.max = max;
  *total.sum = std::fma(*segment.sum, factors[1], *total.sum * factors[0]);
  const F16 a = SetAll(factors[0]), b = SetAll(factors[1]);
  for (int c = 0; c < padded; c += kLanes) {
    const F16 kept = Mul(LoadLanes(total.out + c), a);
    StoreLanes(Fma(LoadLanes(segment.out + c), b, kept), total.out + c);
  }
}

constexpr AttentionKernels kAttentionKernels = {AttendSegment, MergeSegment};

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

AttentionKernels SelectAttentionKernels(Target target) {
  return target >= Target::kAvx512 ? N_AVX3::kAttentionKernels : N_AVX2::kAttentionKernels;
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
