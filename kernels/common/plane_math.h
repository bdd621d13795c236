// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the plane format (docs/plane_format.md), one number at a time: what every
// back-end must compute bit for bit. kernels/cpu/plane_*-inl.h have the vector forms of the
// functions of the same names.
//
// None of this depends on the FTZ and DAZ modes: no operand or result is subnormal where it counts.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/common/half.h"
#include "lynx/host_device.h"
#include "lynx/types.h"

namespace lynx {

// --- BF16 patterns in the order of their values ---------------------------------------------

// -0 comes just before +0, Inf and NaN at the ends.
constexpr int16_t OrderedKey(Bf16 v) {
  const auto bits = static_cast<int16_t>(v.bits);
  return static_cast<int16_t>(bits ^ ((bits >> 15) & 0x7fff));
}
constexpr Bf16 FromOrderedKey(int32_t key) {
  return {static_cast<uint16_t>(key ^ ((static_cast<int16_t>(key) >> 15) & 0x7fff))};
}
// The smallest BF16 value not below f, as a key. f is finite and not subnormal.
constexpr int32_t CeilKey(float f) {
  const auto bits = std::bit_cast<int32_t>(f);
  const int32_t key = bits ^ ((bits >> 31) & 0x7fffffff);
  return (key + (bits < 0 ? 0 : 0xffff)) >> 16;
}
// v as a float to be compared with cell bounds: -0 and the negative subnormals lie below 0.
constexpr float BoundOperand(Bf16 v) {
  const uint32_t bits = uint32_t{v.bits} << 16;
  const bool tiny_negative = bits >= 0x80000000u && bits < 0x80800000u;
  return std::bit_cast<float>(tiny_negative ? 0x80800000u : bits);
}

// --- FP16 rounded outward -------------------------------------------------------------------

// Towards zero. x >= 0, not subnormal.
constexpr uint16_t HalfTruncate(float x) {
  constexpr float kSmallestNormal = 0x1p-14f;
  if (x < kSmallestNormal) return static_cast<uint16_t>(x * 0x1p24f);
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits - (uint32_t{127 - 15} << 23)) >> 13);
}
// Away from zero. x >= 0.
constexpr uint16_t HalfAway(float x) {
  const uint16_t h = HalfTruncate(x);
  return HalfToFloat(h) < x ? h + 1 : h;
}
// The largest FP16 value not above x, the smallest not below it. |x| <= 65504.
constexpr uint16_t HalfBelow(float x) { return x < 0 ? 0x8000 | HalfAway(-x) : HalfTruncate(x); }
constexpr uint16_t HalfAbove(float x) { return x < 0 ? 0x8000 | HalfTruncate(-x) : HalfAway(x); }

// --- Groups ---------------------------------------------------------------------------------

// A group with a magnitude of 2^15 or more, Inf or NaN is sent raw: so page metadata always fits
// FP16.
inline constexpr int kMaxCodedKey = 0x4700 - 1;
constexpr bool IsRawGroup(int min_key, int max_key) {
  return max_key > kMaxCodedKey || min_key < ~kMaxCodedKey;
}

// FP16 low and range that hold every value of the channel strictly: lo <= x < lo + range as floats.
// The range is at least 2^-6 of the largest magnitude, so that a cell is never narrower than the
// rounding of its bounds. A channel of +0 alone has range 0.
struct ChannelRange {
  uint16_t lo = 0;
  uint16_t range = 0;
};
constexpr ChannelRange CoverKeys(int min_key, int max_key) {
  if (min_key == 0 && max_key == 0) return {};
  const float least = BoundOperand(FromOrderedKey(min_key));
  const float greatest = BoundOperand(FromOrderedKey(max_key));
  ChannelRange r;
  r.lo = HalfBelow(least);
  const float lo = HalfToFloat(r.lo);
  const float largest = std::max(lo < 0 ? -lo : lo, greatest < 0 ? -greatest : greatest);
  r.range = HalfAbove(std::max(greatest - lo, 0x1p-6f * largest));
  while (!(lo + HalfToFloat(r.range) > greatest)) ++r.range;
  return r;
}
// The unit of the group codes.
constexpr float GroupUnit(uint16_t range) { return HalfToFloat(range) * 0x1p-8f; }

// Bound q of a group: cell q is [CellBound(q), CellBound(q + 1)). One rounding.
LYNX_HOST_DEVICE inline float CellBound(float q, float step, float lo) {
  return std::fma(q, step, lo);
}
LYNX_HOST_DEVICE inline float GroupLow(int low, float unit, float page_lo) {
  return std::fma(static_cast<float>(low), unit, page_lo);
}
constexpr float GroupStep(int low, int high, float unit) {
  return static_cast<float>(high + 1 - low) * (unit * 0x1p-8f);
}

// Truncates t to an integer in 0 .. 255. NaN, which a group that will be sent raw may give, is 0.
constexpr int ClampCode(float t) { return t > 0 ? static_cast<int>(std::min(t, 255.0f)) : 0; }

// The two codes of a group that holds the values from min_key to max_key.
struct GroupCodes {
  int low;
  int high;
};
LYNX_HOST_DEVICE inline GroupCodes CodesOfGroup(int min_key, int max_key, float page_lo,
                                                float unit) {
  const float least = BoundOperand(FromOrderedKey(min_key));
  const float greatest = BoundOperand(FromOrderedKey(max_key));
  const float scale = unit > 0 ? 1.0f / unit : 0.0f;
  int low = ClampCode((least - page_lo) * scale);
  if (GroupLow(low, unit, page_lo) > least) low = std::max(low - 1, 0);
  const float lo = GroupLow(low, unit, page_lo);
  int high = ClampCode((greatest - page_lo) * scale);
  if (!(CellBound(256, GroupStep(low, high, unit), lo) > greatest)) high = std::min(high + 1, 255);
  if (lo > least || !(CellBound(256, GroupStep(low, high, unit), lo) > greatest)) {
    low = 0;
    high = 255;
  }
  return {low, high};
}

// --- Cells ----------------------------------------------------------------------------------

// The cell that holds x; scale is 1 / step, and a constant group (step 0) has one cell. The
// estimate is off by at most one (docs/plane_format.md).
LYNX_HOST_DEVICE inline int CellOf(float x, float step, float scale, float lo) {
  if (step == 0) return 0;
  const int q = ClampCode((x - lo) * scale);
  const bool below = CellBound(static_cast<float>(q), step, lo) > x;
  const bool above = CellBound(static_cast<float>(q + 1), step, lo) <= x;
  return q - below + above;
}

// The BF16 values of a cell: count of them from key `first`. An empty cell counts as one.
//
// The index of one of them is written in truncated binary: the first num_short() take index_bits()
// bits; the others add num_short() and take an extra bit, which is the lowest and travels apart.
struct Cell {
  int32_t first;
  int count;
  constexpr int index_bits() const { return std::bit_width(static_cast<uint32_t>(count)) - 1; }
  constexpr uint32_t num_short() const {
    return (2u << index_bits()) - static_cast<uint32_t>(count);
  }
};
struct IndexCode {
  uint32_t bits;
  bool has_extra;
  uint32_t extra;
};
constexpr IndexCode CodeOfIndex(uint32_t index, uint32_t num_short) {
  if (index < num_short) return {index, false, 0};
  return {(index + num_short) >> 1, true, (index + num_short) & 1};
}
// extra: 0 when there is none.
constexpr uint32_t IndexOfCode(uint32_t bits, uint32_t extra, uint32_t num_short) {
  return bits < num_short ? bits : 2 * bits + extra - num_short;
}
LYNX_HOST_DEVICE inline Cell CellValues(int q, float step, float lo) {
  const int32_t first = CeilKey(CellBound(static_cast<float>(q), step, lo));
  const int32_t end = CeilKey(CellBound(static_cast<float>(q + 1), step, lo));
  return {first, std::max(end - first, 1)};
}

// What is added to a code whose lower bits are unknown, num_bits being known: half its cell.
constexpr float CodeCentre(int num_bits) { return static_cast<float>(1 << (8 - num_bits)) * 0.5f; }

}  // namespace lynx
