// SPDX-License-Identifier: Apache-2.0
// Writing the exact bits of a block, a step of elements at a time. Index bits are joined eight
// lanes to a word on vectors, and appended word by word; extra bits are gathered by PEXT.
#if defined(LYNX_KERNELS_CPU_PLANE_EXACT_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_EXACT_BITS_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_EXACT_BITS_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_EXACT_BITS_INL_H_
#endif

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/plane_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

// Appends words; may write eight bytes past the end.
class BitAppender {
 public:
  static constexpr unsigned kMaxBits = 56;

  explicit BitAppender(std::byte* out) : begin_(out), out_(out) {}
  HWY_INLINE void Append(uint64_t word, unsigned bits) {
    pending_ |= word << num_pending_;
    std::memcpy(out_, &pending_, sizeof(pending_));
    const unsigned filled = num_pending_ + bits;
    out_ += filled / 8;
    pending_ >>= filled / 8 * 8;
    num_pending_ = filled % 8;
  }
  // Bytes of the whole stream, a multiple of four; the last ones are filled up with zeros.
  size_t Finish() {
    std::memcpy(out_, &pending_, sizeof(pending_));
    const size_t bytes = static_cast<size_t>(out_ - begin_) + (num_pending_ > 0 ? 1 : 0);
    return (bytes + 3) / 4 * 4;
  }

 private:
  std::byte* begin_;
  std::byte* out_;
  uint64_t pending_ = 0;
  unsigned num_pending_ = 0;  // 0 .. 7
};

// Of every two neighbours the upper one's bits move down to the lower one's.
struct JoinedBits {
  hn::Vec<decltype(kWideTag)> words;
  hn::Vec<decltype(kWideTag)> sizes;  // in bits
};

// Eight lanes to a word, in every other 64-bit lane of the result unless one has too many bits.
HWY_INLINE bool JoinEights(const JoinedBits& fours, JoinedBits& eights) {
  const auto upper = hn::ShiftRightLanes<1>(kWideTag, fours.words);
  eights.words = hn::Or(fours.words, hn::Shl(upper, fours.sizes));
  eights.sizes = hn::Add(fours.sizes, hn::ShiftRightLanes<1>(kWideTag, fours.sizes));
  const hn::RebindToSigned<decltype(kWideTag)> s64;
  const auto most = hn::Set(s64, int64_t{BitAppender::kMaxBits});
  return hn::AllFalse(s64, hn::Gt(hn::BitCast(s64, eights.sizes), most));
}

// 16-bit lanes of indices and their widths to four lanes a word.
HWY_INLINE JoinedBits JoinFours(Halves index, Halves bits) {
  const auto low16 = hn::Set(kUintTag, 0xffffu);
  const auto index32 = hn::BitCast(kUintTag, index), bits32 = hn::BitCast(kUintTag, bits);
  const auto even = hn::And(bits32, low16);
  const auto twos = hn::Or(hn::And(index32, low16), hn::Shl(hn::ShiftRight<16>(index32), even));
  const auto sizes = hn::Add(even, hn::ShiftRight<16>(bits32));
  const auto low32 = hn::Set(kWideTag, uint64_t{0xffffffff});
  const auto twos64 = hn::BitCast(kWideTag, twos), sizes64 = hn::BitCast(kWideTag, sizes);
  const auto even64 = hn::And(sizes64, low32);
  return {hn::Or(hn::And(twos64, low32), hn::Shl(hn::ShiftRight<32>(twos64), even64)),
          hn::Add(even64, hn::ShiftRight<32>(sizes64))};
}

// Lane i holds `bits` bits of index.
HWY_INLINE void AppendLanes(Halves index, Halves bits, BitAppender& stream) {
  const JoinedBits fours = JoinFours(index, bits);
  JoinedBits eights;
  const bool fits = JoinEights(fours, eights);
  HWY_ALIGN uint64_t words[kPartLanes / 2];
  HWY_ALIGN uint64_t sizes[kPartLanes / 2];
  if (fits) [[likely]] {
    hn::Store(eights.words, kWideTag, words);
    hn::Store(eights.sizes, kWideTag, sizes);
    for (int i = 0; i < kPartLanes / 2; i += 2) {
      stream.Append(words[i], static_cast<unsigned>(sizes[i]));
    }
    return;
  }
  hn::Store(fours.words, kWideTag, words);
  hn::Store(fours.sizes, kWideTag, sizes);
  for (int i = 0; i < kPartLanes / 2; ++i) {
    const auto size = static_cast<unsigned>(sizes[i]), first = std::min(size, 32u);
    stream.Append(words[i] & 0xffffffff, first);
    stream.Append(words[i] >> 32, size - first);
  }
}

// Cell::index_bits, read off the exponents of the counts as floats.
HWY_INLINE Halves IndexBits(Halves count) {
  const auto both = hn::BitCast(kUintTag, count);
  const auto even = hn::BitCast(kSignedTag, hn::And(both, hn::Set(kUintTag, 0xffffu)));
  const auto odd = hn::BitCast(kSignedTag, hn::ShiftRight<16>(both));
  const auto floats = [](Ints v) LYNX_LAMBDA {
    return hn::BitCast(kSignedTag, hn::ConvertTo(kFloatTag, v));
  };
  const auto exponent = hn::ShiftRight<7>(JoinUpper(floats(even), floats(odd)));
  return hn::Sub(exponent, hn::Set(kHalvesTag, uint16_t{127}));
}

HWY_INLINE uint32_t MaskBits(hn::Mask<decltype(kHalvesTag)> mask) {
  uint32_t bits = 0;
  hn::StoreMaskBits(kHalvesTag, mask, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

// Appends the lowest bits of some lanes.
HWY_INLINE void AppendExtra(Halves values, hn::Mask<decltype(kHalvesTag)> lanes,
                            BitAppender& stream) {
  const auto ones = hn::TestBit(values, hn::Set(kHalvesTag, uint16_t{1}));
  const auto mask = MaskBits(lanes);
  stream.Append(_pext_u32(MaskBits(ones), mask), static_cast<unsigned>(std::popcount(mask)));
}

// CodeOfIndex of each lane.
HWY_INLINE void AppendIndices(Halves index, Halves count, BitAppender& stream, BitAppender& extra) {
  const auto bits = IndexBits(count);
  const auto num_short = hn::Sub(hn::Shl(hn::Set(kHalvesTag, uint16_t{2}), bits), count);
  const auto sum = hn::Add(index, num_short);
  const auto has_extra = hn::Eq(hn::SaturatedSub(num_short, index), hn::Zero(kHalvesTag));
  AppendExtra(sum, has_extra, extra);
  AppendLanes(hn::IfThenElse(has_extra, hn::ShiftRight<1>(sum), index), bits, stream);
}

// Puts the extra bits behind the index bits; sizes in bytes.
HWY_INLINE StreamWords JoinStreams(std::byte* index, size_t index_bytes, const std::byte* extra,
                                   size_t extra_bytes) {
  std::memcpy(index + index_bytes, extra, extra_bytes);
  return {static_cast<uint32_t>(index_bytes / sizeof(uint32_t)),
          static_cast<uint32_t>(extra_bytes / sizeof(uint32_t))};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_EXACT_BITS_INL_H_
