// SPDX-License-Identifier: Apache-2.0
// The words of the plane kernels on vectors: one part of the 16 virtual lanes (lanes-inl.h) at a
// time. Each is the vector form of the function of the same name in kernels/common/plane_math.h.
#if defined(LYNX_KERNELS_CPU_PLANE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_LANES_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_LANES_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_LANES_INL_H_
#endif

#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/plane_block.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

using SignedTag = hn::RebindToSigned<FloatTag>;
inline constexpr SignedTag kSignedTag;
using Floats = hn::Vec<FloatTag>;
using Ints = hn::Vec<SignedTag>;
using Uints = hn::Vec<UintTag>;
inline constexpr hn::Rebind<uint16_t, UintTag> kHalfTag;
inline constexpr hn::Rebind<uint8_t, UintTag> kByteTag;
inline constexpr hn::RepartitionToWide<UintTag> kWideTag;  // 64 bits, half as many lanes
inline constexpr hn::Half<UintTag> kHalfUintTag;
// A step of a tile: as many elements as a vector has 16-bit lanes.
inline constexpr hn::RepartitionToNarrow<UintTag> kHalvesTag;
inline constexpr hn::RebindToSigned<decltype(kHalvesTag)> kKeyTag;
using Halves = hn::Vec<decltype(kHalvesTag)>;
inline constexpr int kStep = 2 * kPartLanes;

HWY_INLINE void StoreHalves(Uints v, void* p) {
  hn::StoreU(hn::TruncateTo(kHalfTag, v), kHalfTag, static_cast<uint16_t*>(p));
}

HWY_INLINE Floats BoundOperand(Ints bits) {
  const auto least_negative = hn::Set(kSignedTag, static_cast<int32_t>(0x80800000u));
  return hn::BitCast(kFloatTag, hn::Max(bits, least_negative));
}

HWY_INLINE Ints OrderedKeyOfBits(Ints bits) {
  const auto magnitude = hn::Set(kSignedTag, 0x7fffffff);
  const auto key = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), magnitude));
  return hn::ShiftRight<16>(key);
}

// Of BF16 patterns in 16-bit lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V OrderedKeys(D d, V bits) {
  return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), hn::Set(d, int16_t{0x7fff})));
}

HWY_INLINE Uints Bf16OfKey(Ints key) {
  const auto magnitude = hn::Set(kSignedTag, 0x7fff);
  const auto sign = hn::ShiftRight<31>(key);
  return hn::BitCast(kUintTag, hn::Xor(key, hn::And(sign, magnitude)));
}

HWY_INLINE Ints CeilKey(Floats f) {
  const auto bits = hn::BitCast(kSignedTag, f);
  const auto sign = hn::ShiftRight<31>(bits);
  const auto magnitude = hn::BitCast(kSignedTag, hn::ShiftRight<1>(hn::BitCast(kUintTag, sign)));
  const auto round_up = hn::AndNot(sign, hn::Set(kSignedTag, 0xffff));
  return hn::ShiftRight<16>(hn::Add(hn::Xor(bits, magnitude), round_up));
}

// Truncated to an integer in 0 .. 255.
HWY_INLINE Floats ClampCode(Floats t) {
  const auto zero = hn::Zero(kFloatTag), most = hn::Set(kFloatTag, 255.0f);
  return hn::Trunc(hn::Min(hn::Max(t, zero), most));
}

// The BF16 values of a cell: the first one's key, and their count.
struct CellLanes {
  Ints first;
  Ints count;
};
HWY_INLINE CellLanes CellValues(Floats q, Floats step, Floats lo) {
  const auto first = CeilKey(hn::MulAdd(q, step, lo));
  const auto end = CeilKey(hn::MulAdd(hn::Add(q, hn::Set(kFloatTag, 1.0f)), step, lo));
  return {first, hn::Max(hn::Sub(end, first), hn::Set(kSignedTag, 1))};
}

// The 16-bit halves of the even and the odd elements of a step in their order.
HWY_INLINE Halves JoinLower(Uints even, Uints odd) {
  return hn::OddEven(hn::BitCast(kHalvesTag, hn::ShiftLeft<16>(odd)),
                     hn::BitCast(kHalvesTag, even));
}
HWY_INLINE Halves JoinUpper(Ints even, Ints odd) {
  const auto down = hn::ShiftRight<16>(hn::BitCast(kUintTag, even));
  return hn::OddEven(hn::BitCast(kHalvesTag, odd), hn::BitCast(kHalvesTag, down));
}

// All ones for the live tokens of a block.
struct LiveMask {
  uint32_t token[kBlockSize];
  LiveMask(int begin, int end) {
    for (int t = 0; t < kBlockSize; ++t) token[t] = t >= begin && t < end ? ~0u : 0u;
  }
};

// Walks the vectors of a tile in order and says which group parameters and tokens they have.
template <KvKind kKind>
struct VectorCursor {
  explicit VectorCursor(int head_dim) : head_dim(head_dim) {}
  HWY_INLINE Floats Param(const float* channel_values, int part) const {
    if constexpr (kKind == KvKind::kKey) return hn::Set(kFloatTag, channel_values[channel]);
    return hn::LoadU(kFloatTag, channel_values + channel + part * kPartLanes);
  }
  HWY_INLINE Uints Live(const LiveMask& mask, int part) const {
    if constexpr (kKind == KvKind::kKey) {
      return hn::LoadU(kUintTag, mask.token + token + part * kPartLanes);
    }
    return hn::Set(kUintTag, mask.token[token]);
  }
  HWY_INLINE void Next() {
    if constexpr (kKind == KvKind::kKey) {
      token += kLanes;
      if (token == kBlockSize) token = 0, ++channel;
    } else {
      channel += kLanes;
      if (channel == head_dim) channel = 0, ++token;
    }
  }
  int head_dim;
  int channel = 0;
  int token = 0;
};

// Rows of dwords, one per lane.
HWY_INLINE Uints LoadRow(const std::byte* rows, size_t row, int part) {
  const auto* p = reinterpret_cast<const uint32_t*>(rows) + row * kLanes;
  return hn::LoadU(kUintTag, p + part * kPartLanes);
}
HWY_INLINE void StoreRow(Uints v, std::byte* rows, size_t row, int part) {
  auto* p = reinterpret_cast<uint32_t*>(rows) + row * kLanes;
  hn::StoreU(v, kUintTag, p + part * kPartLanes);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_LANES_INL_H_
