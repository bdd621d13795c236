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
static_assert(kMaxLastPairs <= kMaxBlockPairs);
constexpr int kTileLanes = kParts == 1 ? 64 : 32;

// Rows of lanes, one row every `stride` elements, and as many rows of the tile that is needed next,
// to prefetch.
template <typename T>
struct Rows {
  const T* data;
  const T* ahead;
  size_t stride;
  Rows Skip(size_t rows, size_t lanes = 0) const {
    const size_t elements = rows * stride + lanes;
    return {data + elements, ahead + elements, stride};
  }
};

// One fma chain for each of R pairs and V · 16 lanes over every step-th of n · step rows:
// sums[r][i] = Σ_j coefficient[r][j] · row[j · step][i]. coefficient is [R, ldc], sums [R, V · 16].
template <int R, int V, typename T>
void SumChain(Rows<T> rows, int step, int n, const float* coefficient, size_t ldc, float* sums) {
  constexpr int kLineElements = 64 / sizeof(T);
  F16 acc[R * V];
  Unroll<R * V>([&](auto i) LYNX_LAMBDA { acc[i] = SetAll(0.0f); });
  for (int j = 0; j < n; ++j) {
    F16 v[V];
    Unroll<V / 2>([&](auto i) LYNX_LAMBDA {  //
      LoadPair(rows.data + 32 * i, v[2 * i], v[2 * i + 1]);
    });
    Unroll<V * kLanes / kLineElements>([&](auto i) LYNX_LAMBDA {  //
      hwy::Prefetch(rows.ahead + kLineElements * i);
    });
    Unroll<R>([&](auto r) LYNX_LAMBDA {
      const F16 c = SetAll(coefficient[r * ldc + j]);
      Unroll<V>([&](auto i) LYNX_LAMBDA { acc[r * V + i] = Fma(c, v[i], acc[r * V + i]); });
    });
    rows = rows.Skip(step);
  }
  Unroll<R * V>([&](auto i) LYNX_LAMBDA { StoreLanes(acc[i], sums + i * kLanes); });
}

template <typename T>
using SumChainFn = void (*)(Rows<T> rows, int step, int n, const float* coefficient, size_t ldc,
                            float* sums);

// SumChain for 1 .. kMaxLastPairs pairs.
template <int V, typename T>
SumChainFn<T> SelectSumChain(int num_pairs) {
  return [&]<int... r>(std::integer_sequence<int, r...>) {
    constexpr SumChainFn<T> kFunctions[] = {SumChain<r + 1, V, T>...};
    return kFunctions[num_pairs - 1];
  }
  (std::make_integer_sequence<int, kMaxLastPairs>());
}

// out[r][lane] = Σ_j coefficient[r][j] · row[j][lane] over n rows, in the order of T, for V · 16
// lanes. coefficient is in lane positions; out is [num_pairs, ldo].
template <int V, typename T>
void Contract(const Rows<T>& rows, int num_pairs, int n, const float* coefficient, size_t ldc,
              float* out, size_t ldo) {
  const SumChainFn<T> sum_chain = SelectSumChain<V, T>(num_pairs);
  HWY_ALIGN float even[kMaxLastPairs * V * kLanes], odd[kMaxLastPairs * V * kLanes];
  const auto for_each = [&](auto f) LYNX_LAMBDA {
    for (int r = 0; r < num_pairs; ++r) {
      for (int i = 0; i < V; ++i) f(out + r * ldo + i * kLanes, (r * V + i) * kLanes);
    }
  };
  if constexpr (std::is_same_v<T, float>) {
    sum_chain(rows, 1, n, coefficient, ldc, even);
    for_each([&](float* o, int at) LYNX_LAMBDA { StoreLanes(LoadLanes(even + at), o); });
    return;
  }
  for (int k = 0; k < n; k += 32) {
    const int half = std::min(n - k, 32) / 2;
    sum_chain(rows.Skip(k), 2, half, coefficient + k, ldc, even);
    sum_chain(rows.Skip(k + 1), 2, half, coefficient + k + kLanes, ldc, odd);
    for_each([&](float* o, int at) LYNX_LAMBDA {
      const F16 tile = Add(LoadLanes(even + at), LoadLanes(odd + at));
      StoreLanes(Add(k == 0 ? SetAll(0.0f) : LoadLanes(o), tile), o);
    });
  }
}

// Contract over all lanes of a row, a multiple of 32.
template <typename T>
void ContractRows(const Rows<T>& rows, int lanes, int num_pairs, int n, const float* coefficient,
                  size_t ldc, float* out, size_t ldo) {
  int lane = 0;
  for (; lane + kTileLanes <= lanes; lane += kTileLanes) {
    Contract<kTileLanes / kLanes>(rows.Skip(0, lane), num_pairs, n, coefficient, ldc, out + lane,
                                  ldo);
  }
  if (lane < lanes) {
    Contract<2>(rows.Skip(0, lane), num_pairs, n, coefficient, ldc, out + lane, ldo);
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

// What one block is to some pairs: the slots that each sees, the sum of its probabilities, and the
// factor that its state so far keeps.
struct BlockPairs {
  int begin[kMaxTilePairs];
  int end[kMaxTilePairs];
  float sum[kMaxTilePairs];
  HWY_ALIGN float keep[(kMaxTilePairs + kLanes - 1) / kLanes * kLanes];
};

// For the pairs [pair, pair + num_pairs); false when none sees any slot.
HWY_INLINE bool FindVisible(const SegmentTask& task, int pair, int num_pairs, int block,
                            BlockPairs& pairs) {
  bool any = false;
  for (int r = 0; r < num_pairs; ++r) {
    pairs.begin[r] = std::max(task.visible[pair + r].begin - block * kBlockSize, 0);
    pairs.end[r] = std::min(task.visible[pair + r].end - block * kBlockSize, kBlockSize);
    any |= pairs.begin[r] < pairs.end[r];
  }
  return any;
}

// Scores, [num_pairs, 64], become probabilities in place.
template <typename T>
HWY_INLINE void SoftmaxPairs(const SegmentTask& task, int pair, int num_pairs, float* scores,
                             BlockPairs& pairs) {
  const int vectors = (num_pairs + kLanes - 1) / kLanes;
  std::fill_n(pairs.keep, vectors * kLanes, 0.0f);
  for (int r = 0; r < num_pairs; ++r) {
    float* p = scores + r * kBlockSize;
    if (pairs.begin[r] < pairs.end[r]) {
      const float old = task.max[pair + r];
      task.max[pair + r] =
          Softmax<T>(p, task.scale, old, pairs.begin[r], pairs.end[r], pairs.sum[r]);
      pairs.keep[r] = old - task.max[pair + r];
    } else {
      std::fill_n(p, kBlockSize, 0.0f);
    }
  }
  for (int i = 0; i < vectors * kLanes; i += kLanes) {
    StoreLanes(Exp(LoadLanes(pairs.keep + i)), pairs.keep + i);
  }
}

// Adds the block's weighted values, task.weighted, to the state of the pairs.
HWY_INLINE void AddWeighted(const SegmentTask& task, int pair, int num_pairs,
                            const BlockPairs& pairs) {
  const int padded = PaddedHeadDim(task.pool->layout.head_dim);
  for (int r = 0; r < num_pairs; ++r) {
    if (pairs.begin[r] >= pairs.end[r]) continue;
    task.sum[pair + r] = std::fma(task.sum[pair + r], pairs.keep[r], pairs.sum[r]);
    const F16 factor = SetAll(pairs.keep[r]);
    const float* weighted = task.weighted + size_t(r) * padded;
    float* out = task.out + size_t(pair + r) * padded;
    for (int c = 0; c < padded; c += kLanes) {
      StoreLanes(Fma(LoadLanes(out + c), factor, LoadLanes(weighted + c)), out + c);
    }
  }
}

// One block for the pairs [pair, pair + num_pairs), at most kMaxLastPairs.
template <typename T>
void AttendBlock(const SegmentTask& task, int pair, int num_pairs, int block, const Rows<T>& key,
                 const Rows<T>& value) {
  const int head_dim = task.pool->layout.head_dim, padded = PaddedHeadDim(head_dim);
  BlockPairs pairs;
  if (!FindVisible(task, pair, num_pairs, block, pairs)) return;
  HWY_ALIGN float scores[kMaxLastPairs * kBlockSize];
  ContractRows(key, kBlockSize, num_pairs, head_dim, task.q + size_t(pair) * padded, padded, scores,
               kBlockSize);
  SoftmaxPairs<T>(task, pair, num_pairs, scores, pairs);
  ContractRows(value, padded, num_pairs, kBlockSize, scores, kBlockSize, task.weighted, padded);
  AddWeighted(task, pair, num_pairs, pairs);
}

// Coefficients in lane positions, [num_pairs, n], as rows of activations: [n / 32][num_pairs][32].
void PackCoefficients(const float* from, int num_pairs, int n, float* to) {
  for (int k = 0; k < n; k += 32) {
    for (int r = 0; r < num_pairs; ++r, to += kLanes) {
      const float* at = from + size_t(r) * n + k;
      StoreLanes(JoinBf16(LoadLanes(at), LoadLanes(at + kLanes)), to);
    }
  }
}

// n rows of lanes, both multiples of 32, as panels of n inputs and 16 outputs in lane positions.
void PackPanels(const Rows<Bf16>& rows, int n, int lanes, float* to) {
  const size_t panel = size_t(n) / 2 * kLanes;
  for (int r = 0; r < n; r += 2, to += kLanes) {
    for (int lane = 0; lane < lanes; lane += 32) {
      const Rows<Bf16> first = rows.Skip(r, lane), second = rows.Skip(r + 1, lane);
      F16 even[2], odd[2];
      LoadPair(first.data, even[0], odd[0]);
      LoadPair(second.data, even[1], odd[1]);
      hwy::Prefetch(first.ahead);
      hwy::Prefetch(second.ahead);
      float* at = to + lane / kLanes * panel;
      StoreLanes(JoinBf16(even[0], even[1]), at);
      StoreLanes(JoinBf16(odd[0], odd[1]), at + panel);
    }
  }
}

// out[r][lane] = Σ_j coefficient[r][j] · row[j][lane] over n rows, for all pairs of the task.
void ContractOnAmx(const SegmentTask& task, const Rows<Bf16>& rows, int lanes, int n,
                   const float* coefficients, float* out) {
  const AmxScratch& amx = *task.amx;
  PackPanels(rows, n, lanes, amx.panels);
  amx.kernels->multiply({.rows = task.num_pairs,
                         .panels = lanes / kPanelOutputs,
                         .blocks = n / kBlockInputs,
                         .weights = reinterpret_cast<const std::byte*>(amx.panels),
                         .weight_stride = size_t(n) / 2 * kLineBytes,
                         .x = coefficients,
                         .tile_rows = amx.tile_rows,
                         .acc = out});
}

// One block for all pairs of the task.
void AttendBlockOnAmx(const SegmentTask& task, int block, const Rows<Bf16>& key,
                      const Rows<Bf16>& value) {
  const int head_dim = task.pool->layout.head_dim;
  const AmxScratch& amx = *task.amx;
  BlockPairs pairs;
  if (!FindVisible(task, 0, task.num_pairs, block, pairs)) return;
  ContractOnAmx(task, key, kBlockSize, head_dim, amx.queries, amx.scores);
  SoftmaxPairs<Bf16>(task, 0, task.num_pairs, amx.scores, pairs);
  PackCoefficients(amx.scores, task.num_pairs, kBlockSize, amx.probabilities);
  ContractOnAmx(task, value, head_dim, kBlockSize, amx.probabilities, task.weighted);
  AddWeighted(task, 0, task.num_pairs, pairs);
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
  const bool on_amx = std::is_same_v<T, Bf16> && task.amx != nullptr &&
                      task.num_pairs >= kMinAmxPairs && task.pool->layout.head_dim == padded;
  if (on_amx) PackCoefficients(task.q, task.num_pairs, padded, task.amx->queries);
  const auto tile = [&](int block, KvKind kind) LYNX_LAMBDA {
    return reinterpret_cast<const T*>(
        task.pool->tile(task.block_table[block], task.layer, kind, task.kv_head));
  };
  for (int b = task.block_begin; b < task.block_end; ++b) {
    const T* value = tile(b, KvKind::kValue);
    const Rows<T> key_rows = {tile(b, KvKind::kKey), value, kBlockSize};
    const T* next =
        b + 1 < task.block_end ? tile(b + 1, KvKind::kKey) : reinterpret_cast<const T*>(task.ahead);
    const Rows<T> value_rows = ValueRows(task, value, next);
    if constexpr (std::is_same_v<T, Bf16>) {
      if (on_amx) {
        AttendBlockOnAmx(task, b, key_rows, value_rows);
        continue;
      }
    }
    for (int pair = 0, n; pair < task.num_pairs; pair += n) {
      n = task.num_pairs - pair;
      if (n > kMaxLastPairs) n = kTilePairs;
      AttendBlock(task, pair, n, b, key_rows, value_rows);
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

constexpr AttentionKernels kAttentionKernels = {.attend_segment = AttendSegment,
                                                .merge_segment = MergeSegment};

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

AttentionKernels SelectAttentionKernels(Target target) {
  AttentionKernels kernels =
      target >= Target::kAvx512 ? N_AVX3::kAttentionKernels : N_AVX2::kAttentionKernels;
  if (target == Target::kAmx) kernels.amx = &kBf16Amx;
  return kernels;
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
