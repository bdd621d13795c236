// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv_write.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row_split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kv_write.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

// Rows and columns of what is turned in registers: 16-bit elements of a vector of 128 bits.
constexpr int kTurned = 8;
constexpr hn::CappedTag<uint16_t, kTurned> kTurnedTag;

// The finite BF16 nearest to each lane. In integers, so that denormals stay whatever the float
// mode.
HWY_INLINE void StoreFinite(const F16& x, uint16_t* y) {
  const auto all = hn::Set(kUintTag, 0x7fffffffu), infinity = hn::Set(kUintTag, 0x7f800000u);
  const auto largest = hn::Set(kUintTag, 0x7f7f0000u);
  const auto half = hn::Set(kUintTag, 0x7fffu), one = hn::Set(kUintTag, 1u);
  const hn::Rebind<uint16_t, UintTag> half_tag;
  Unroll<kParts>([&](auto i) LYNX_LAMBDA {
    const auto bits = hn::BitCast(kUintTag, x.part[i]);
    const auto magnitude = hn::And(bits, all);
    const auto clamped = hn::Or(hn::AndNot(all, bits), hn::Min(magnitude, largest));
    const auto u = hn::IfThenZeroElse(hn::Gt(magnitude, infinity), clamped);
    const auto odd = hn::And(hn::ShiftRight<16>(u), one);
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(half, odd)));
    hn::StoreU(hn::TruncateTo(half_tag, rounded), half_tag, y + i * kPartLanes);
  });
}

// The first n <= 16 numbers at x.
HWY_INLINE void StoreFinite(const float* x, int n, uint16_t* y) {
  StoreFinite(n == kLanes ? LoadLanes(x) : LoadLanes(x, n), y);
}

// to[j * stride + i] = from[i * kLanes + j] for i, j < 8.
HWY_INLINE void StoreTurned(const uint16_t* from, int stride, uint16_t* to) {
  const hn::RepartitionToWide<decltype(kTurnedTag)> tag32;
  const hn::RepartitionToWide<decltype(tag32)> tag64;
  hn::Vec<decltype(tag32)> two[kTurned];  // of rows 2i, 2i + 1: columns 0 to 3, then 4 to 7
  Unroll<kTurned / 2>([&](auto i) LYNX_LAMBDA {
    const auto a = hn::LoadU(kTurnedTag, from + 2 * i * kLanes);
    const auto b = hn::LoadU(kTurnedTag, from + (2 * i + 1) * kLanes);
    two[2 * i] = hn::BitCast(tag32, hn::InterleaveLower(kTurnedTag, a, b));
    two[2 * i + 1] = hn::BitCast(tag32, hn::InterleaveUpper(kTurnedTag, a, b));
  });
  hn::Vec<decltype(tag64)> four[kTurned];  // of rows 0 to 3, then 4 to 7: two columns each
  Unroll<kTurned / 2>([&](auto i) LYNX_LAMBDA {
    constexpr int kFirst = i / 2 * 4 + i % 2;
    const auto a = two[kFirst], b = two[kFirst + 2];
    four[2 * i] = hn::BitCast(tag64, hn::InterleaveLower(tag32, a, b));
    four[2 * i + 1] = hn::BitCast(tag64, hn::InterleaveUpper(tag32, a, b));
  });
  Unroll<kTurned / 2>([&](auto i) LYNX_LAMBDA {
    const auto low = hn::InterleaveLower(tag64, four[i], four[i + 4]);
    const auto high = hn::InterleaveUpper(tag64, four[i], four[i + 4]);
    hn::StoreU(hn::BitCast(kTurnedTag, low), kTurnedTag, to + 2 * i * stride);
    hn::StoreU(hn::BitCast(kTurnedTag, high), kTurnedTag, to + (2 * i + 1) * stride);
  });
}

// n <= 16 channels of num_rows <= 8 keys, from row `row` on.
HWY_INLINE void WriteKeys(const HeadRows& rows, int row, int num_rows, int channel, int n,
                          Bf16* key_tile) {
  alignas(64) uint16_t keys[kTurned][kLanes];
  for (int r = 0; r < num_rows; ++r) {
    StoreFinite(rows.k + (row + r) * rows.stride + channel, n, keys[r]);
  }
  auto* to = reinterpret_cast<uint16_t*>(key_tile) + channel * kBlockSize + rows.slot + row;
  int c = 0;
  if (num_rows == kTurned) {
    for (; c + kTurned <= n; c += kTurned) {
      StoreTurned(&keys[0][c], kBlockSize, to + c * kBlockSize);
    }
  }
  for (; c < n; ++c) {
    for (int r = 0; r < num_rows; ++r) to[c * kBlockSize + r] = keys[r][c];
  }
}

void KvWriteRows(const HeadRows& rows, Bf16* key_tile, Bf16* value_tile) {
  const int head_dim = rows.head_dim;
  for (int r = 0; r < rows.num_rows; r += kTurned) {
    const int num_rows = std::min(kTurned, rows.num_rows - r);
    for (int c = 0; c < head_dim; c += kLanes) {
      WriteKeys(rows, r, num_rows, c, std::min(kLanes, head_dim - c), key_tile);
    }
  }
  for (int r = 0; r < rows.num_rows; ++r) {
    const float* v = rows.v + r * rows.stride;
    auto* to = reinterpret_cast<uint16_t*>(value_tile) + (rows.slot + r) * head_dim;
    int c = 0;
    for (; c + kLanes <= head_dim; c += kLanes) StoreFinite(LoadLanes(v + c), to + c);
    if (c == head_dim) continue;
    uint16_t tail[kLanes];
    StoreFinite(v + c, head_dim - c, tail);
    std::memcpy(to + c, tail, (head_dim - c) * sizeof(uint16_t));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {
namespace {

// What is stored is finite (kv_layout.h says why): NaN becomes 0.
float Finite(float x, float largest) {
  return std::isnan(x) ? 0.0f : std::clamp(x, -largest, largest);
}
void Round(float x, Bf16& y) { y = ToBf16(Finite(x, 0x1.fep127f)); }
void Round(float x, float& y) { y = Finite(x, std::numeric_limits<float>::max()); }

template <typename T>
void WriteToken(const float* k, const float* v, int head_dim, int slot, T* key_tile,
                T* value_tile) {
  for (int c = 0; c < head_dim; ++c) Round(k[c], key_tile[c * kBlockSize + slot]);
  for (int c = 0; c < head_dim; ++c) Round(v[c], value_tile[slot * head_dim + c]);
}

template <typename T>
void WriteRows(const HeadRows& rows, T* key_tile, T* value_tile) {
  for (int r = 0; r < rows.num_rows; ++r) {
    WriteToken(rows.k + r * rows.stride, rows.v + r * rows.stride, rows.head_dim, rows.slot + r,
               key_tile, value_tile);
  }
}

void KvWriteRowsRef(const HeadRows& rows, Bf16* key_tile, Bf16* value_tile) {
  WriteRows(rows, key_tile, value_tile);
}

// Writes the rows of a group that fall into its block number `block`, one KV head.
template <typename T>
void WriteBlock(const KvWriteParams& params, const RowGroup& group, int block, int head,
                void (*write)(const HeadRows&, T*, T*)) {
  const KvLayout& layout = params.pool.layout;
  const int first = std::max(group.position, block * kBlockSize);
  const int last = std::min(group.position + group.num_rows, (block + 1) * kBlockSize);
  const int64_t stride = int64_t{layout.num_kv_heads} * layout.head_dim;
  const int64_t offset =
      (group.row_begin + first - group.position) * stride + int64_t{head} * layout.head_dim;
  const auto tile = [&](KvKind kind) {
    return reinterpret_cast<T*>(
        params.pool.tile(group.block_table[block], params.layer, kind, head));
  };
  write({.k = params.k + offset,
         .v = params.v + offset,
         .stride = stride,
         .num_rows = last - first,
         .head_dim = layout.head_dim,
         .slot = first % kBlockSize},
        tile(KvKind::kKey), tile(KvKind::kValue));
}

template <typename T>
void WriteGroup(const KvWriteParams& params, const RowGroup& group, ThreadPool& pool,
                void (*write)(const HeadRows&, T*, T*)) {
  const KvLayout& layout = params.pool.layout;
  const int first_block = group.position / kBlockSize;
  const int num_blocks = (group.position + group.num_rows - 1) / kBlockSize - first_block + 1;
  const int64_t num_tiles = int64_t{num_blocks} * layout.num_kv_heads;
  const int64_t elements = int64_t{group.num_rows} * layout.num_kv_heads * layout.head_dim;
  SplitRows(pool, num_tiles, elements / num_tiles, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      WriteBlock<T>(params, group, first_block + static_cast<int>(i / layout.num_kv_heads),
                    static_cast<int>(i % layout.num_kv_heads), write);
    }
  });
}

}  // namespace

void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, Bf16* key_tile,
                     Bf16* value_tile) {
  WriteToken(k, v, head_dim, slot, key_tile, value_tile);
}

void KvWriteTokenRef(const float* k, const float* v, int head_dim, int slot, float* key_tile,
                     float* value_tile) {
  WriteToken(k, v, head_dim, slot, key_tile, value_tile);
}

void CpuBackend::KvWrite(const KvWriteParams& params) {
  const auto write_bf16 = LYNX_CPU_SELECT(options_.target, KvWriteRows);
  for (const RowGroup& group : params.groups) {
    if (group.num_rows == 0) continue;
    if (params.pool.layout.dtype == KvDtype::kBf16) {
      WriteGroup<Bf16>(params, group, pool_, write_bf16);
    } else {
      WriteGroup<float>(params, group, pool_, WriteRows<float>);
    }
  }
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
