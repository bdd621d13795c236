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

// A column of rows: the two vectors of lanes that one vector of BF16 comes apart into.
using FloatVector = hn::Vec<FloatTag>;
constexpr int kColumnLanes = 2 * kPartLanes;
// Where the first of its vectors stands among lane positions; the second is kLanes further.
constexpr int ColumnLane(int column) { return column / kParts * 32 + column % kParts * kPartLanes; }

// Pairs that are contracted at a time, and the accumulators that registers have room for.
constexpr int kTilePairs = kParts == 1 ? 6 : 3;
constexpr int kAccumulators = kParts == 1 ? 24 : 12;
constexpr int kBlockVectors = kBlockSize / kLanes;
// Pairs of a task from which on AddTwoLinks pays; fewer are bound by memory.
constexpr int kMinTwoLinkPairs = 4;

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

HWY_INLINE void LoadColumn(const Rows<Bf16>& rows, int column, FloatVector& even,
                           FloatVector& odd) {
  const auto u =
      hn::LoadU(kUintTag, reinterpret_cast<const uint32_t*>(rows.data) + column * kPartLanes);
  even = hn::BitCast(kFloatTag, hn::ShiftLeft<16>(u));
  odd = hn::BitCast(kFloatTag, hn::And(u, hn::Set(kUintTag, 0xffff0000u)));
  hwy::Prefetch(rows.ahead + column * kColumnLanes);
}
// The same of rows r and r + 2, as AddTwoLinks wants them: the first row's in the high halves.
HWY_INLINE void LoadTwoRows(const Rows<Bf16>& rows, int column, FloatVector& even,
                            FloatVector& odd) {
  const hn::Repartition<uint16_t, UintTag> d16;
  const Rows<Bf16> later = rows.Skip(2);
  const auto load = [&](const Bf16* row) LYNX_LAMBDA {
    return hn::LoadU(kUintTag, reinterpret_cast<const uint32_t*>(row) + column * kPartLanes);
  };
  const auto first = load(rows.data), second = load(later.data);
  const auto join = [&](auto high, auto low) LYNX_LAMBDA {
    return hn::BitCast(kFloatTag, hn::OddEven(hn::BitCast(d16, high), hn::BitCast(d16, low)));
  };
  even = join(hn::ShiftLeft<16>(first), second);
  odd = join(first, hn::ShiftRight<16>(second));
  hwy::Prefetch(rows.ahead + column * kColumnLanes);
  hwy::Prefetch(later.ahead + column * kColumnLanes);
}
HWY_INLINE void LoadColumn(const Rows<float>& rows, int column, FloatVector& first,
                           FloatVector& second) {
  const int lane = ColumnLane(column);
  first = hn::LoadU(kFloatTag, rows.data + lane);
  second = hn::LoadU(kFloatTag, rows.data + lane + kLanes);
  hwy::Prefetch(rows.ahead + lane);
  hwy::Prefetch(rows.ahead + lane + kLanes);
}

// Two links of a chain at once: VDPBF16PS adds the product of the high halves to sum, then that of
// the low ones, each as an FMA would. Written so because its intrinsic is of another target.
template <typename V>
HWY_INLINE V AddTwoLinks(V sum, V a, V b) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}
// The BF16 coefficients of two links for AddTwoLinks, in even lanes; the odd lanes stay as they
// are, so that joining again changes nothing.
HWY_INLINE F16 JoinLinks(const F16& x) {
  const hn::Repartition<uint64_t, FloatTag> d64;
  return ForParts([&](int i) LYNX_LAMBDA {
    const auto u = hn::BitCast(d64, x.part[i]);
    return hn::BitCast(kFloatTag, hn::Or(u, hn::ShiftRight<48>(u)));
  });
}

// out[r][lane] = Σ_j coefficient[r][j] · row[j][lane] over n rows, in the order of T, for R pairs
// and C columns. coefficient is [R, ldc], in lane positions, with kTwoLinks joined; out is [R,
// ldo].
template <bool kTwoLinks, int R, int C, typename T>
HWY_INLINE void ContractColumns(Rows<T> rows, int column, int n, const float* coefficient,
                                size_t ldc, float* out, size_t ldo) {
  constexpr bool kTileOrder = std::is_same_v<T, Bf16>;
  constexpr int kChains = kTileOrder ? 2 : 1, kLinks = kTwoLinks ? 2 : 1, kVectors = 2 * C;
  const int chunk = kTileOrder ? 32 : n;
  for (int k = 0; k < n; k += chunk) {
    FloatVector acc[kChains][R][kVectors];
    Unroll<kChains * R * kVectors>([&](auto i)
                                       LYNX_LAMBDA { (&acc[0][0][0])[i] = hn::Zero(kFloatTag); });
    const int links = std::min(n - k, chunk) / kChains;
    for (int j = 0; j < links; j += kLinks) {
      Unroll<kChains>([&](auto chain) LYNX_LAMBDA {
        FloatVector v[kVectors];
        Unroll<C>([&](auto c) LYNX_LAMBDA {
          if constexpr (kTwoLinks) {
            LoadTwoRows(rows, column + c, v[2 * c], v[2 * c + 1]);
          } else {
            LoadColumn(rows, column + c, v[2 * c], v[2 * c + 1]);
          }
        });
        Unroll<R>([&](auto r) LYNX_LAMBDA {
          const auto a = hn::Set(kFloatTag, coefficient[r * ldc + k + chain * kLanes + j]);
          Unroll<kVectors>([&](auto i) LYNX_LAMBDA {
            auto& sum = acc[chain][r][i];
            if constexpr (kTwoLinks) {
              sum = AddTwoLinks(sum, a, v[i]);
            } else {
              sum = hn::MulAdd(a, v[i], sum);
            }
          });
        });
        rows = rows.Skip(1);
      });
      if constexpr (kTwoLinks) rows = rows.Skip(2);
    }
    Unroll<R * kVectors>([&](auto i) LYNX_LAMBDA {
      constexpr int r = i / kVectors, v = i % kVectors;
      float* to = out + r * ldo + ColumnLane(column + v / 2) + v % 2 * kLanes;
      auto sum = acc[0][r][v];
      if constexpr (kTileOrder) {
        const auto before = k == 0 ? hn::Zero(kFloatTag) : hn::LoadU(kFloatTag, to);
        sum = hn::Add(before, hn::Add(sum, acc[1][r][v]));
      }
      hn::StoreU(sum, kFloatTag, to);
    });
  }
}

// ContractColumns over all lanes of a row, a multiple of 32.
template <bool kTwoLinks, int R, typename T>
void ContractRows(const Rows<T>& rows, int lanes, int n, const float* coefficient, size_t ldc,
                  float* out, size_t ldo) {
  constexpr int kColumnAccumulators = R * 2 * (std::is_same_v<T, Bf16> ? 2 : 1);
  constexpr int C = 2 * kColumnAccumulators <= kAccumulators ? 2 : 1;
  const int columns = lanes / kColumnLanes;
  int column = 0;
  for (; column + C <= columns; column += C) {
    ContractColumns<kTwoLinks, R, C>(rows, column, n, coefficient, ldc, out, ldo);
  }
  if (column == columns) return;
  ContractColumns<kTwoLinks, R, 1>(rows, column, n, coefficient, ldc, out, ldo);
}

// ContractRows for any number of pairs.
template <bool kTwoLinks, typename T>
void Contract(const Rows<T>& rows, int lanes, int num_pairs, int n, const float* coefficient,
              size_t ldc, float* out, size_t ldo) {
  constexpr auto kContractRows = []<int... r>(std::integer_sequence<int, r...>) {
    return std::array{ContractRows<kTwoLinks, r + 1, T>...};
  }
  (std::make_integer_sequence<int, kTilePairs>());
  Rows<T> tile = rows;
  for (int pair = 0; pair < num_pairs; pair += kTilePairs) {
    const int tile_pairs = std::min(num_pairs - pair, kTilePairs);
    kContractRows[tile_pairs - 1](tile, lanes, n, coefficient + pair * ldc, ldc, out + pair * ldo,
                                  ldo);
    tile.ahead = rows.data;  // fetched by the first pass
  }
}

// The pairs that see a block are neighbours, as ranges grow with the row. Slots outside
// [begin, end) are not seen; both may lie outside the block.
struct BlockPairs {
  int first = 0;
  int num_pairs = 0;
  int begin[kMaxTilePairs];
  int end[kMaxTilePairs];
  // Factors of their state, in whole vectors.
  HWY_ALIGN float keep[(kMaxTilePairs + kLanes - 1) / kLanes * kLanes] = {};
  bool SeesAll(int r) const { return begin[r] <= 0 && end[r] >= kBlockSize; }
};

HWY_INLINE void FindPairs(const SegmentTask& task, int block, BlockPairs& pairs) {
  const int start = block * kBlockSize, stop = start + kBlockSize;
  int last = task.num_pairs;
  while (pairs.first < last && task.visible[pairs.first].end <= start) ++pairs.first;
  while (last > pairs.first && task.visible[last - 1].begin >= stop) --last;
  pairs.num_pairs = last - pairs.first;
  for (int r = 0; r < pairs.num_pairs; ++r) {
    pairs.begin[r] = task.visible[pairs.first + r].begin - start;
    pairs.end[r] = task.visible[pairs.first + r].end - start;
  }
}

// Elements of a block's lanes that pair r does not see become `other`.
template <typename T>
HWY_INLINE void HideUnseen(const BlockPairs& pairs, int r, float other, F16 (&x)[kBlockVectors]) {
  Unroll<kBlockVectors>([&](auto i) LYNX_LAMBDA {
    x[i] = IfInRange(LoadLanes(&kTokenIndex<T>[i * kLanes]), static_cast<float>(pairs.begin[r]),
                     static_cast<float>(pairs.end[r]), x[i], SetAll(other));
  });
}

// exp(score · scale − max), rounded for BF16 tiles, of [num_pairs, 64] scores in place.
template <typename T>
HWY_INLINE void ExpScores(float scale, const float* max, float* scores, int num_pairs) {
  constexpr int kVectors = 4;  // at a time: they hide each other's latency
  for (int at = 0; at < num_pairs * kBlockSize; at += kVectors * kPartLanes) {
    const auto x = Mul(LoadLanes<kVectors>(scores + at), SetAll<kVectors>(scale));
    auto p = Exp(Sub(x, SetAll<kVectors>(max[at / kBlockSize])));
    if constexpr (std::is_same_v<T, Bf16>) p = RoundToBf16(p);
    StoreLanes(p, scores + at);
  }
}

// Scores, [num_pairs, 64], become probabilities in place, with kTwoLinks joined.
template <bool kTwoLinks, typename T>
void Softmax(const SegmentTask& task, float* scores, BlockPairs& pairs) {
  const F16 scale = SetAll(task.scale);
  float* const max = task.max + pairs.first;
  float* const sum = task.sum + pairs.first;
  F16 x[kBlockVectors];
  for (int r = 0; r < pairs.num_pairs; ++r) {
    const float* score = scores + r * kBlockSize;
    Unroll<kBlockVectors>([&](auto i)
                              LYNX_LAMBDA { x[i] = Mul(LoadLanes(score + i * kLanes), scale); });
    if (!pairs.SeesAll(r)) HideUnseen<T>(pairs, r, kMinusInfinity, x);
    const float old = max[r];
    max[r] = MaxRef(old, MaxLanes(Max(Max(x[0], x[1]), Max(x[2], x[3]))));
    pairs.keep[r] = old - max[r];
  }
  ExpScores<T>(task.scale, max, scores, pairs.num_pairs);
  for (int r = 0; r < pairs.num_pairs; r += kLanes) {
    StoreLanes(Exp(LoadLanes(pairs.keep + r)), pairs.keep + r);
  }
  for (int r = 0; r < pairs.num_pairs; ++r) {
    float* p = scores + r * kBlockSize;
    Unroll<kBlockVectors>([&](auto i) LYNX_LAMBDA { x[i] = LoadLanes(p + i * kLanes); });
    const bool whole = pairs.SeesAll(r);
    if (!whole) HideUnseen<T>(pairs, r, 0.0f, x);
    sum[r] = std::fma(sum[r], pairs.keep[r], SumLanes(Add(Add(Add(x[0], x[1]), x[2]), x[3])));
    if (whole && !kTwoLinks) continue;
    Unroll<kBlockVectors>([&](auto i) LYNX_LAMBDA {
      StoreLanes(kTwoLinks ? JoinLinks(x[i]) : x[i], p + i * kLanes);
    });
  }
}

// Adds the block's weighted values, [num_pairs, padded], to the state of the pairs.
HWY_INLINE void AddWeighted(const SegmentTask& task, const float* weighted,
                            const BlockPairs& pairs) {
  const int padded = PaddedHeadDim(task.pool->layout.head_dim);
  float* out = task.out + size_t(pairs.first) * padded;
  for (int r = 0; r < pairs.num_pairs; ++r) {
    const F16 factor = SetAll(pairs.keep[r]);
    for (int c = 0; c < padded; c += kLanes, out += kLanes, weighted += kLanes) {
      StoreLanes(Fma(LoadLanes(out), factor, LoadLanes(weighted)), out);
    }
  }
}

template <bool kTwoLinks, typename T>
void AttendBlock(const SegmentTask& task, int block, const Rows<T>& key, const Rows<T>& value) {
  const int head_dim = task.pool->layout.head_dim, padded = PaddedHeadDim(head_dim);
  BlockPairs pairs;
  FindPairs(task, block, pairs);
  HWY_ALIGN float scores[kMaxTilePairs * kBlockSize];
  Contract<kTwoLinks>(key, kBlockSize, pairs.num_pairs, head_dim,
                      task.q + size_t(pairs.first) * padded, padded, scores, kBlockSize);
  Softmax<kTwoLinks, T>(task, scores, pairs);
  Contract<kTwoLinks>(value, padded, pairs.num_pairs, kBlockSize, scores, kBlockSize, task.weighted,
                      padded);
  AddWeighted(task, task.weighted, pairs);
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

// out[r][lane] = Σ_j coefficient[r][j] · row[j][lane] over n rows.
void ContractOnAmx(const SegmentTask& task, int num_pairs, const Rows<Bf16>& rows, int lanes, int n,
                   const float* coefficients, float* out) {
  const AmxScratch& amx = *task.amx;
  PackPanels(rows, n, lanes, amx.panels);
  amx.kernels->multiply({.rows = num_pairs,
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
  FindPairs(task, block, pairs);
  ContractOnAmx(task, task.num_pairs, key, kBlockSize, head_dim, amx.queries, amx.scores);
  float* const seen = amx.scores + size_t(pairs.first) * kBlockSize;
  Softmax<false, Bf16>(task, seen, pairs);
  PackCoefficients(seen, pairs.num_pairs, kBlockSize, amx.probabilities);
  ContractOnAmx(task, pairs.num_pairs, value, head_dim, kBlockSize, amx.probabilities,
                task.weighted);
  AddWeighted(task, task.weighted, pairs);
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

template <bool kTwoLinks, typename T>
void AttendSegmentOf(const SegmentTask& task) {
  const int padded = PaddedHeadDim(task.pool->layout.head_dim);
  std::fill_n(task.max, task.num_pairs, kMinusInfinity);
  std::fill_n(task.sum, task.num_pairs, 0.0f);
  std::fill_n(task.out, size_t(task.num_pairs) * padded, 0.0f);
  const bool on_amx = std::is_same_v<T, Bf16> && task.amx != nullptr &&
                      task.num_pairs >= kMinAmxPairs && task.pool->layout.head_dim == padded;
  if (on_amx) {
    PackCoefficients(task.q, task.num_pairs, padded, task.amx->queries);
  } else if (kTwoLinks) {
    for (int i = 0; i < task.num_pairs * padded; i += kLanes) {
      StoreLanes(JoinLinks(LoadLanes(task.q + i)), task.q + i);
    }
  }
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
    AttendBlock<kTwoLinks>(task, b, key_rows, value_rows);
  }
}

template <bool kTwoLinks>
void AttendSegment(const SegmentTask& task) {
  if (task.pool->layout.dtype == KvDtype::kF32) {
    AttendSegmentOf<false, float>(task);
  } else if (kTwoLinks && task.num_pairs >= kMinTwoLinkPairs &&
             task.pool->layout.head_dim % 4 == 0) {
    AttendSegmentOf<kTwoLinks, Bf16>(task);
  } else {
    AttendSegmentOf<false, Bf16>(task);
  }
}

// ToBf16 of each lane, as float32.
HWY_INLINE FloatVector NearestBf16(FloatVector x) {
  const auto quiet = hn::And(hn::Or(hn::BitCast(kUintTag, x), hn::Set(kUintTag, 0x400000u)),
                             hn::Set(kUintTag, 0xffff0000u));
  const auto rounded = RoundToBf16(Vectors<1>{x}).part[0];
  return hn::IfThenElse(hn::IsNaN(x), hn::BitCast(kFloatTag, quiet), rounded);
}

void LoadQuery(const float* q, const KvLayout& layout, float* prepared) {
  if (layout.dtype == KvDtype::kF32) {
    std::memcpy(prepared, q, layout.head_dim * sizeof(float));
    return;
  }
  int c = 0;
  for (; c + 32 <= layout.head_dim; c += 32) {
    Unroll<kParts>([&](auto i) LYNX_LAMBDA {
      FloatVector even, odd;
      hn::LoadInterleaved2(kFloatTag, q + c + 2 * i * kPartLanes, even, odd);
      hn::StoreU(NearestBf16(even), kFloatTag, prepared + c + i * kPartLanes);
      hn::StoreU(NearestBf16(odd), kFloatTag, prepared + c + kLanes + i * kPartLanes);
    });
  }
  for (; c < layout.head_dim; ++c) prepared[LanePosition<Bf16>(c)] = ToFloat(ToBf16(q[c]));
}

void StoreResult(const float* total, float sum, const KvLayout& layout, float* out) {
  const auto divisor = hn::Set(kFloatTag, sum);
  const auto quotient = [&](const float* at)
                            LYNX_LAMBDA { return hn::Div(hn::LoadU(kFloatTag, at), divisor); };
  const bool in_order = layout.dtype == KvDtype::kF32;
  int c = 0;
  for (; c + 32 <= layout.head_dim; c += 32) {
    Unroll<kParts>([&](auto i) LYNX_LAMBDA {
      const auto first = quotient(total + c + i * kPartLanes);
      const auto second = quotient(total + c + kLanes + i * kPartLanes);
      if (in_order) {
        hn::StoreU(first, kFloatTag, out + c + i * kPartLanes);
        hn::StoreU(second, kFloatTag, out + c + kLanes + i * kPartLanes);
      } else {
        hn::StoreInterleaved2(first, second, kFloatTag, out + c + 2 * i * kPartLanes);
      }
    });
  }
  for (; c < layout.head_dim; ++c) out[c] = total[in_order ? c : LanePosition<Bf16>(c)] / sum;
}

void MergeSegment(const PartialState& segment, int padded, const PartialState& total) {
  const float max = MaxRef(*total.max, *segment.max);
  const F16 a = Exp(SetAll(*total.max - max)), b = Exp(SetAll(*segment.max - max));
  *total.max = max;
  *total.sum = std::fma(*segment.sum, hn::GetLane(b.part[0]), *total.sum * hn::GetLane(a.part[0]));
  for (int c = 0; c < padded; c += kLanes) {
    const F16 kept = Mul(LoadLanes(total.out + c), a);
    StoreLanes(Fma(LoadLanes(segment.out + c), b, kept), total.out + c);
  }
}

template <bool kTwoLinks>
constexpr AttentionKernels kAttentionKernels = {.load_query = LoadQuery,
                                                .attend_segment = AttendSegment<kTwoLinks>,
                                                .merge_segment = MergeSegment,
                                                .store_result = StoreResult};

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

AttentionKernels SelectAttentionKernels(Target target) {
  AttentionKernels kernels = N_AVX2::kAttentionKernels<false>;
  if (target >= Target::kAvx512) kernels = N_AVX3::kAttentionKernels<false>;
  if (target >= Target::kAvx512Bf16 && Supports(Target::kAvx512Bf16)) {
    kernels = N_AVX3::kAttentionKernels<true>;
  }
  if (target == Target::kAmx) kernels.amx = &kBf16Amx;
  return kernels;
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
