// SPDX-License-Identifier: Apache-2.0
// Metadata of the plane format on vectors: the range of keys of each channel of a block, the FP16
// ranges of a page, the two codes of each group, and its bounds.
#if defined(LYNX_KERNELS_CPU_PLANE_RANGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_RANGES_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_RANGES_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_RANGES_INL_H_
#endif

#include "kernels/cpu/plane_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE hn::Vec<D> LoadKeys(D d, const Bf16* p) {
  return OrderedKeys(d, hn::LoadU(d, reinterpret_cast<const int16_t*>(p)));
}

// The smallest of a vector of keys.
HWY_INLINE int16_t SmallestKey(hn::Vec<hn::CappedTag<int16_t, 8>> keys) {
  const hn::CappedTag<uint16_t, 8> u8;
  const auto bias = hn::Set(u8, uint16_t{0x8000});
  const auto least = hn::MinOfLanes(u8, hn::Xor(hn::BitCast(u8, keys), bias));
  return static_cast<int16_t>(hn::GetLane(least) ^ 0x8000);
}
template <class D>
HWY_INLINE int16_t SmallestKey(D d, hn::Vec<D> keys) {
  const hn::Half<D> half;
  const auto less = hn::Min(hn::LowerHalf(half, keys), hn::UpperHalf(half, keys));
  if constexpr (hn::MaxLanes(half) == 8) {
    return SmallestKey(less);
  } else {
    return SmallestKey(half, less);
  }
}

// The range of each of the channels c .. of a value tile, one per lane.
template <class D>
HWY_INLINE void RangeOfValues(D d, int head_dim, const Bf16* tile, int16_t* min_key,
                              int16_t* max_key) {
  auto least = LoadKeys(d, tile), greatest = least;
  for (int t = 1; t < kBlockSize; ++t) {
    const auto keys = LoadKeys(d, tile + t * head_dim);
    least = hn::Min(least, keys);
    greatest = hn::Max(greatest, keys);
  }
  hn::StoreU(least, d, min_key);
  hn::StoreU(greatest, d, max_key);
}

void KeyRange(KvKind kind, int head_dim, const Bf16* tile, int16_t* min_key, int16_t* max_key) {
  if (kind == KvKind::kKey) {
    for (int c = 0; c < head_dim; ++c, tile += kBlockSize) {
      auto least = LoadKeys(kKeyTag, tile), greatest = least;
      for (int t = kStep; t < kBlockSize; t += kStep) {
        const auto keys = LoadKeys(kKeyTag, tile + t);
        least = hn::Min(least, keys);
        greatest = hn::Max(greatest, keys);
      }
      min_key[c] = SmallestKey(kKeyTag, least);
      max_key[c] = static_cast<int16_t>(~SmallestKey(kKeyTag, hn::Not(greatest)));
    }
    return;
  }
  int c = 0;
  for (; c + kStep <= head_dim; c += kStep) {
    RangeOfValues(kKeyTag, head_dim, tile + c, min_key + c, max_key + c);
  }
  if (c == head_dim) return;
  RangeOfValues(hn::CappedTag<int16_t, kLanes>(), head_dim, tile + c, min_key + c, max_key + c);
}

// The values of keys as operands of comparisons with bounds.
HWY_INLINE Floats KeyOperands(Ints keys) {
  return BoundOperand(hn::BitCast(kSignedTag, hn::ShiftLeft<16>(Bf16OfKey(keys))));
}
HWY_INLINE Ints LoadInts(const int16_t* keys) {
  const hn::Rebind<int16_t, SignedTag> d;
  return hn::PromoteTo(kSignedTag, hn::LoadU(d, keys));
}

// FP16 patterns of numbers that are not negative, and back.
HWY_INLINE Floats HalfToFloat(Uints half) {
  const auto normal = hn::Add(hn::ShiftLeft<13>(half), hn::Set(kUintTag, uint32_t{112} << 23));
  const auto tiny = hn::Mul(hn::ConvertTo(kFloatTag, hn::BitCast(kSignedTag, half)),
                            hn::Set(kFloatTag, 0x1p-24f));
  const auto is_tiny = hn::RebindMask(kFloatTag, hn::Lt(half, hn::Set(kUintTag, 0x400u)));
  return hn::IfThenElse(is_tiny, tiny, hn::BitCast(kFloatTag, normal));
}
HWY_INLINE Uints HalfTruncate(Floats x) {
  const auto bits = hn::BitCast(kUintTag, x);
  const auto normal = hn::ShiftRight<13>(hn::Sub(bits, hn::Set(kUintTag, uint32_t{112} << 23)));
  const auto tiny = hn::ConvertTo(kSignedTag, hn::Mul(x, hn::Set(kFloatTag, 0x1p24f)));
  const auto is_tiny = hn::RebindMask(kUintTag, hn::Lt(x, hn::Set(kFloatTag, 0x1p-14f)));
  return hn::IfThenElse(is_tiny, hn::BitCast(kUintTag, tiny), normal);
}
HWY_INLINE Uints OneWhere(hn::Mask<FloatTag> mask) {
  return hn::IfThenElseZero(hn::RebindMask(kUintTag, mask), hn::Set(kUintTag, 1u));
}
HWY_INLINE Uints HalfAway(Floats x) {
  const auto half = HalfTruncate(x);
  return hn::Add(half, OneWhere(hn::Lt(HalfToFloat(half), x)));
}

struct RangeLanes {
  Uints lo, range;  // FP16
  Floats page_lo, unit;
};
HWY_INLINE RangeLanes CoverKeys(Ints min_key, Ints max_key) {
  const auto least = KeyOperands(min_key), greatest = KeyOperands(max_key);
  const auto negative = hn::Lt(least, hn::Zero(kFloatTag));
  const auto magnitude = hn::Abs(least);
  const auto below = hn::IfThenElse(hn::RebindMask(kUintTag, negative), HalfAway(magnitude),
                                    HalfTruncate(magnitude));
  const auto sign = hn::IfThenElseZero(negative, hn::Set(kFloatTag, -0.0f));
  const auto page_lo = hn::Or(HalfToFloat(below), sign);
  const auto largest = hn::Max(hn::Abs(page_lo), hn::Abs(greatest));
  const auto floor = hn::Mul(largest, hn::Set(kFloatTag, 0x1p-6f));
  auto range = HalfAway(hn::Max(hn::Sub(greatest, page_lo), floor));
  const auto holds = hn::Gt(hn::Add(page_lo, HalfToFloat(range)), greatest);
  range = hn::Add(range, OneWhere(hn::Not(holds)));
  const auto zeros = hn::Eq(hn::Or(min_key, max_key), hn::Zero(kSignedTag));
  range = hn::IfThenZeroElse(hn::RebindMask(kUintTag, zeros), range);
  const auto lo = hn::Or(below, hn::ShiftRight<16>(hn::BitCast(kUintTag, sign)));
  return {lo, range, page_lo, hn::Mul(HalfToFloat(range), hn::Set(kFloatTag, 0x1p-8f))};
}

void PageRanges(const PageRangesParams& p) {
  const auto most = hn::Set(kSignedTag, kMaxCodedKey), least = hn::Set(kSignedTag, ~kMaxCodedKey);
  for (int c = 0; c < p.head_dim; c += kPartLanes) {
    auto min_key = hn::Set(kSignedTag, INT16_MAX), max_key = hn::Set(kSignedTag, INT16_MIN);
    for (int i = 0; i < p.num_blocks; ++i) {
      const auto min = LoadInts(p.min_key[i] + c), max = LoadInts(p.max_key[i] + c);
      const auto raw = hn::Or(hn::Gt(max, most), hn::Lt(min, least));
      min_key = hn::IfThenElse(raw, min_key, hn::Min(min_key, min));
      max_key = hn::IfThenElse(raw, max_key, hn::Max(max_key, max));
    }
    const auto empty = hn::Gt(min_key, max_key);
    const RangeLanes r =
        CoverKeys(hn::IfThenZeroElse(empty, min_key), hn::IfThenZeroElse(empty, max_key));
    StoreHalves(r.lo, p.lo + c);
    StoreHalves(r.range, p.range + c);
    hn::StoreU(r.page_lo, kFloatTag, p.page_lo + c);
    hn::StoreU(r.unit, kFloatTag, p.unit + c);
  }
}

HWY_INLINE Floats GroupStep(Floats low, Floats high, Floats unit) {
  const auto width = hn::Sub(hn::Add(high, hn::Set(kFloatTag, 1.0f)), low);
  return hn::Mul(width, hn::Mul(unit, hn::Set(kFloatTag, 0x1p-8f)));
}

void GroupCodes(const GroupCodesParams& p) {
  const auto one = hn::Set(kFloatTag, 1.0f), zero = hn::Zero(kFloatTag);
  const auto cells = hn::Set(kFloatTag, 256.0f), most = hn::Set(kFloatTag, 255.0f);
  for (int c = 0; c < p.head_dim; c += kPartLanes) {
    const auto page_lo = hn::LoadU(kFloatTag, p.page_lo + c);
    const auto unit = hn::LoadU(kFloatTag, p.unit + c);
    const auto least = KeyOperands(LoadInts(p.min_key + c));
    const auto greatest = KeyOperands(LoadInts(p.max_key + c));
    const auto scale = hn::IfThenElseZero(hn::Gt(unit, zero), hn::Div(one, unit));
    auto low = ClampCode(hn::Mul(hn::Sub(least, page_lo), scale));
    const auto above = hn::Gt(hn::MulAdd(low, unit, page_lo), least);
    low = hn::IfThenElse(above, hn::Max(hn::Sub(low, one), zero), low);
    const auto lo = hn::MulAdd(low, unit, page_lo);
    auto high = ClampCode(hn::Mul(hn::Sub(greatest, page_lo), scale));
    auto holds = hn::Gt(hn::MulAdd(cells, GroupStep(low, high, unit), lo), greatest);
    high = hn::IfThenElse(holds, high, hn::Min(hn::Add(high, one), most));
    holds = hn::Gt(hn::MulAdd(cells, GroupStep(low, high, unit), lo), greatest);
    holds = hn::And(holds, hn::Le(lo, least));
    low = hn::IfThenElseZero(holds, low);
    high = hn::IfThenElse(holds, high, most);
    const auto store = [](Floats code, uint8_t* out) LYNX_LAMBDA {
      const auto u = hn::BitCast(kUintTag, hn::ConvertTo(kSignedTag, code));
      hn::StoreU(hn::TruncateTo(kByteTag, u), kByteTag, out);
    };
    store(low, p.low + c);
    store(high, p.high + c);
  }
}

void GroupBounds(int head_dim, const float* page_lo, const float* unit, const uint8_t* low,
                 const uint8_t* high, float* lo, float* step) {
  const auto load = [](const uint8_t* codes) LYNX_LAMBDA {
    const auto u = hn::PromoteTo(kUintTag, hn::LoadU(kByteTag, codes));
    return hn::ConvertTo(kFloatTag, hn::BitCast(kSignedTag, u));
  };
  for (int c = 0; c < head_dim; c += kPartLanes) {
    const auto units = hn::LoadU(kFloatTag, unit + c), lows = load(low + c);
    hn::StoreU(hn::MulAdd(lows, units, hn::LoadU(kFloatTag, page_lo + c)), kFloatTag, lo + c);
    hn::StoreU(GroupStep(lows, load(high + c), units), kFloatTag, step + c);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_RANGES_INL_H_
