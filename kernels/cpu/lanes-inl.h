// SPDX-License-Identifier: Apache-2.0
// Sixteen virtual lanes of float32: one 512-bit register or two of 256 bits. Kernels are written
// once over F16 and so give the same bits on both. Included once per target (see dispatch.h), after
// hwy/highway.h.
#if defined(LYNX_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_LANES_INL_H_
#undef LYNX_KERNELS_CPU_LANES_INL_H_
#else
#define LYNX_KERNELS_CPU_LANES_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/common/math_ref.h"
#include "lynx/types.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, kLanes>;
using UintTag = hn::RebindToUnsigned<FloatTag>;
inline constexpr int kPartLanes = hn::MaxLanes(FloatTag());
inline constexpr int kParts = kLanes / kPartLanes;
inline constexpr FloatTag kFloatTag;
inline constexpr UintTag kUintTag;

// N vectors. More than kParts of them are several F16 whose operations take turns, which hides the
// latency of long chains.
template <int N>
struct Vectors {
  hn::Vec<FloatTag> part[N];
};
using F16 = Vectors<kParts>;

// f(integral_constant i) for i = 0 .. N-1, unrolled whatever the optimizer thinks of it, so that
// arrays of accumulators stay in registers.
template <int N, typename F>
HWY_INLINE void Unroll(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) LYNX_LAMBDA {
    (f(std::integral_constant<int, i>()), ...);
  }
  (std::make_integer_sequence<int, N>());
}

// Part i is f(i).
template <int N = kParts, typename F>
HWY_INLINE Vectors<N> ForParts(F&& f) {
  Vectors<N> v;
  Unroll<N>([&](auto i) LYNX_LAMBDA { v.part[i] = f(i); });
  return v;
}

template <int N = kParts>
HWY_INLINE Vectors<N> SetAll(float x) {
  const auto v = hn::Set(kFloatTag, x);
  return ForParts<N>([&](int) LYNX_LAMBDA { return v; });
}
template <int N = kParts>
HWY_INLINE Vectors<N> LoadLanes(const float* p) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::LoadU(kFloatTag, p + i * kPartLanes); });
}
template <int N>
HWY_INLINE void StoreLanes(const Vectors<N>& v, float* p) {
  Unroll<N>([&](auto i) LYNX_LAMBDA { hn::StoreU(v.part[i], kFloatTag, p + i * kPartLanes); });
}
// The first n < 16 elements; the other lanes are zero.
HWY_INLINE F16 LoadLanes(const float* p, int n) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return LoadLanes(lanes);
}
HWY_INLINE void StoreLanes(const F16& v, float* p, int n) {
  float lanes[kLanes];
  StoreLanes(v, lanes);
  std::memcpy(p, lanes, n * sizeof(float));
}

template <int N>
HWY_INLINE Vectors<N> Add(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Add(a.part[i], b.part[i]); });
}
template <int N>
HWY_INLINE Vectors<N> Sub(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Sub(a.part[i], b.part[i]); });
}
template <int N>
HWY_INLINE Vectors<N> Mul(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Mul(a.part[i], b.part[i]); });
}
template <int N>
HWY_INLINE Vectors<N> Div(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Div(a.part[i], b.part[i]); });
}
// a · b + c, rounded once.
template <int N>
HWY_INLINE Vectors<N> Fma(const Vectors<N>& a, const Vectors<N>& b, const Vectors<N>& c) {
  return ForParts<N>([&](int i)
                         LYNX_LAMBDA { return hn::MulAdd(a.part[i], b.part[i], c.part[i]); });
}
// c − a · b, rounded once.
template <int N>
HWY_INLINE Vectors<N> NegFma(const Vectors<N>& a, const Vectors<N>& b, const Vectors<N>& c) {
  return ForParts<N>([&](int i)
                         LYNX_LAMBDA { return hn::NegMulAdd(a.part[i], b.part[i], c.part[i]); });
}
// The second operand when either is NaN.
template <int N>
HWY_INLINE Vectors<N> Max(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Max(a.part[i], b.part[i]); });
}
template <int N>
HWY_INLINE Vectors<N> Min(const Vectors<N>& a, const Vectors<N>& b) {
  return ForParts<N>([&](int i) LYNX_LAMBDA { return hn::Min(a.part[i], b.part[i]); });
}
// x where begin <= index < end, else y.
HWY_INLINE F16 IfInRange(const F16& index, float begin, float end, const F16& x, const F16& y) {
  const auto first = hn::Set(kFloatTag, begin), last = hn::Set(kFloatTag, end);
  return ForParts([&](int i) LYNX_LAMBDA {
    const auto inside = hn::And(hn::Ge(index.part[i], first), hn::Lt(index.part[i], last));
    return hn::IfThenElse(inside, x.part[i], y.part[i]);
  });
}
// Rounded to BF16, nearest even; the lower halves are zero. For finite x.
template <int N>
HWY_INLINE Vectors<N> RoundToBf16(const Vectors<N>& x) {
  const auto half = hn::Set(kUintTag, 0x7fffu), one = hn::Set(kUintTag, 1u);
  const auto upper = hn::Set(kUintTag, 0xffff0000u);
  return ForParts<N>([&](int i) LYNX_LAMBDA {
    const auto u = hn::BitCast(kUintTag, x.part[i]);
    const auto odd = hn::And(hn::ShiftRight<16>(u), one);
    return hn::BitCast(kFloatTag, hn::And(hn::Add(u, hn::Add(half, odd)), upper));
  });
}

// 32 consecutive elements as two F16. BF16 come apart into even and odd elements, which costs one
// instruction each; float32 into the first and the last 16.
HWY_INLINE void LoadPair(const Bf16* p, F16& even, F16& odd) {
  const auto upper = hn::Set(kUintTag, 0xffff0000u);
  const auto* dwords = reinterpret_cast<const uint32_t*>(p);
  Unroll<kParts>([&](auto i) LYNX_LAMBDA {
    const auto u = hn::LoadU(kUintTag, dwords + i * kPartLanes);
    even.part[i] = hn::BitCast(kFloatTag, hn::ShiftLeft<16>(u));
    odd.part[i] = hn::BitCast(kFloatTag, hn::And(u, upper));
  });
}
HWY_INLINE void LoadPair(const float* p, F16& first, F16& second) {
  first = LoadLanes(p);
  second = LoadLanes(p + kLanes);
}
// Two BF16 in each lane, the first in the low half. Of numbers whose lower halves are zero.
HWY_INLINE F16 JoinBf16(const F16& first, const F16& second) {
  return ForParts([&](int i) LYNX_LAMBDA {
    const auto low = hn::ShiftRight<16>(hn::BitCast(kUintTag, first.part[i]));
    return hn::BitCast(kFloatTag, hn::Or(low, hn::BitCast(kUintTag, second.part[i])));
  });
}

// Joins the lanes in the order of JoinLanesRef.
template <typename V, size_t N, typename Op>
HWY_INLINE float JoinLanes(const V (&part)[N], Op op) {
  const hn::CappedTag<float, 8> d8;
  const hn::CappedTag<float, 4> d4;
  hn::Vec<decltype(d8)> eight;
  if constexpr (N == 1) {
    eight = op(hn::LowerHalf(d8, part[0]), hn::UpperHalf(d8, part[0]));
  } else {
    eight = op(part[0], part[1]);
  }
  const auto four = op(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  const auto two = op(four, hn::Shuffle1032(four));
  return hn::GetLane(op(two, hn::Shuffle2301(two)));
}
HWY_INLINE float SumLanes(const F16& v) {
  return JoinLanes(v.part, [](auto a, auto b) LYNX_LAMBDA { return hn::Add(a, b); });
}
HWY_INLINE float MaxLanes(const F16& v) {
  return JoinLanes(v.part, [](auto a, auto b) LYNX_LAMBDA { return hn::Max(a, b); });
}

// ExpRef of each lane.
template <int N>
HWY_INLINE Vectors<N> Exp(Vectors<N> x) {
  using C = ExpConstants;
  x = Min(SetAll<N>(C::kMax), Max(SetAll<N>(C::kMin), x));
  const Vectors<N> rounded = Fma(x, SetAll<N>(C::kLog2E), SetAll<N>(C::kRound));
  const Vectors<N> t = Sub(rounded, SetAll<N>(C::kRound));
  Vectors<N> r = NegFma(t, SetAll<N>(C::kLn2Hi), x);
  r = NegFma(t, SetAll<N>(C::kLn2Lo), r);
  Vectors<N> p = SetAll<N>(C::kC5);
  p = Fma(p, r, SetAll<N>(C::kC4));
  p = Fma(p, r, SetAll<N>(C::kC3));
  p = Fma(p, r, SetAll<N>(C::kC2));
  p = Fma(p, r, SetAll<N>(C::kC1));
  p = Fma(p, r, SetAll<N>(C::kC0));
  p = Fma(p, Mul(r, r), Add(r, SetAll<N>(1.0f)));
  return ForParts<N>([&](int i) LYNX_LAMBDA {
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(kUintTag, rounded.part[i]));
    return hn::BitCast(kFloatTag, hn::Add(hn::BitCast(kUintTag, p.part[i]), exponent));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_LANES_INL_H_
