// SPDX-License-Identifier: Apache-2.0
// Decoding a block on vectors. The rows of a chunk are first merged to bytes (byte j of dword r =
// code of vector 4j + r). Exact bits: a prefix sum of the widths gives each lane its place, half a
// vector reads from one 64-bit window; wider halves, which are rare, go lane by lane. What has been
// read says which lanes have an extra bit.
#if defined(LYNX_KERNELS_CPU_PLANE_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_DECODE_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_DECODE_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_DECODE_INL_H_
#endif

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/plane_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

// The codes of a chunk: bytes[r][part] has the codes of vectors 4j + r. Absent planes are zeros.
HWY_INLINE void LoadChunk(const DecodeBlockParams& p, int chunk, Uints (&bytes)[4][kParts]) {
  const auto low_nibbles = hn::Set(kUintTag, 0x0f0f0f0fu), pairs = hn::Set(kUintTag, 0x33333333u);
  const auto bits = hn::Set(kUintTag, 0x55555555u), zero = hn::Zero(kUintTag);
  const int odd = chunk % 2;
  Unroll<kParts>([&](auto part) LYNX_LAMBDA {
    const auto top = LoadRow(p.rows[0], chunk, part);
    const auto bit = [&](int plane) LYNX_LAMBDA {
      if (p.rows[plane] == nullptr) return zero;
      const auto row = LoadRow(p.rows[plane], chunk / 2, part);
      return hn::And(odd != 0 ? hn::ShiftRight<1>(row) : row, bits);
    };
    const auto bit3 = bit(1), middle = hn::Or(hn::Add(bit3, bit3), bit(2));
    const Uints high[2] = {
        hn::Or(hn::ShiftLeft<2>(hn::And(top, pairs)), hn::And(middle, pairs)),
        hn::Or(hn::AndNot(pairs, top), hn::And(hn::ShiftRight<2>(middle), pairs))};
    for (int r = 0; r < 2; ++r) {
      const auto low = p.rows[3] == nullptr
                           ? zero
                           : LoadRow(p.rows[3], static_cast<size_t>(chunk) * 2 + r, part);
      bytes[r][part] =
          hn::Or(hn::ShiftLeft<4>(hn::And(high[r], low_nibbles)), hn::And(low, low_nibbles));
      bytes[r + 2][part] =
          hn::Or(hn::AndNot(low_nibbles, high[r]), hn::And(hn::ShiftRight<4>(low), low_nibbles));
    }
  });
}

// Takes the lowest byte of each lane.
HWY_INLINE Floats TakeCode(Uints& bytes) {
  const auto q = hn::And(bytes, hn::Set(kUintTag, 0xffu));
  bytes = hn::ShiftRight<8>(bytes);
  return hn::ConvertTo(kFloatTag, hn::BitCast(kSignedTag, q));
}

HWY_INLINE Uints RoundedHalves(Floats f) {
  const auto u = hn::BitCast(kUintTag, f);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(kUintTag, 1u));
  return hn::ShiftRight<16>(hn::Add(u, hn::Add(hn::Set(kUintTag, 0x7fffu), odd)));
}

// Reads indices lane by lane; what lies past the end of the stream is unspecified.
class IndexReader {
 public:
  IndexReader(const std::byte* stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  // Lane i takes `width` bits.
  HWY_INLINE Uints Read(Uints width) {
    constexpr int kHalfLanes = kPartLanes / 2;
    const auto inclusive = PrefixSumOfHalves(width);
    HWY_ALIGN uint32_t sums[kPartLanes];
    hn::Store(inclusive, kUintTag, sums);
    const uint32_t first = sums[kHalfLanes - 1], last = sums[kPartLanes - 1];
    if (std::max(first, last) > kWindowBits) [[unlikely]]
      return ReadWide(width);
    const auto offset = hn::Sub(inclusive, width);
    const auto low = Shift(Window(at_), hn::LowerHalf(kHalfUintTag, offset));
    const auto high = Shift(Window(at_ + first), hn::UpperHalf(kHalfUintTag, offset));
    at_ += first + last;
    return hn::And(hn::ConcatEven(kUintTag, high, low), Mask(width));
  }
  size_t position() const { return at_; }

 private:
  static constexpr uint32_t kWindowBits = 57;  // a window starts at a byte

  uint64_t Window(size_t at) const {
    uint64_t word;
    std::memcpy(&word, stream_ + std::min(at / 8, bytes_), sizeof(word));
    return word >> (at % 8);
  }
  static HWY_INLINE Uints Shift(uint64_t window, hn::Vec<decltype(kHalfUintTag)> offset) {
    const auto offset64 = hn::PromoteTo(kWideTag, offset);
    return hn::BitCast(kUintTag, hn::Shr(hn::Set(kWideTag, window), offset64));
  }
  static HWY_INLINE Uints Mask(Uints width) {
    const auto one = hn::Set(kUintTag, 1u);
    return hn::Sub(hn::Shl(one, width), one);
  }
  static HWY_INLINE Uints PrefixSumOfHalves(Uints v) {
    v = hn::Add(v, hn::ShiftLeftLanes<1>(kUintTag, v));
    v = hn::Add(v, hn::ShiftLeftLanes<2>(kUintTag, v));
    if constexpr (kPartLanes == 16) {
      HWY_ALIGN static constexpr int32_t kFrom[16] = {0, 0, 0, 0, 3,  3,  3,  3,
                                                      0, 0, 0, 0, 11, 11, 11, 11};
      HWY_ALIGN static constexpr uint32_t kOdd[16] = {0, 0, 0, 0, ~0u, ~0u, ~0u, ~0u,
                                                      0, 0, 0, 0, ~0u, ~0u, ~0u, ~0u};
      const auto carry = hn::TableLookupLanes(v, hn::SetTableIndices(kUintTag, kFrom));
      v = hn::Add(v, hn::And(carry, hn::Load(kUintTag, kOdd)));
    }
    return v;
  }
  HWY_NOINLINE Uints ReadWide(Uints width) {
    HWY_ALIGN uint32_t lanes[kPartLanes];
    hn::Store(width, kUintTag, lanes);
    for (uint32_t& lane : lanes) {
      const uint32_t bits = lane;
      lane = static_cast<uint32_t>(Window(at_)) & ((1u << bits) - 1);
      at_ += bits;
    }
    return hn::Load(kUintTag, lanes);
  }

  const std::byte* stream_;
  size_t bytes_;
  size_t at_ = 0;  // bits
};

// Reads extra bits; what lies past the end of the stream is unspecified.
class ExtraReader {
 public:
  ExtraReader(const std::byte* stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  // One bit for each of the lanes, 0 for the others.
  HWY_INLINE Ints Read(hn::Mask<SignedTag> lanes) {
    uint8_t bytes[8] = {};
    hn::StoreMaskBits(kSignedTag, lanes, bytes);
    uint32_t mask, window;
    std::memcpy(&mask, bytes, sizeof(mask));
    std::memcpy(&window, stream_ + std::min(at_ / 8, bytes_), sizeof(window));
    window >>= at_ % 8;
    at_ += static_cast<size_t>(std::popcount(mask));
    return hn::And(Spread(window, mask), hn::Set(kSignedTag, 1));
  }
  size_t position() const { return at_; }

 private:
  // Bit i of the window, in the lowest bit of the i-th lane of the mask, 0 in the other lanes. PDEP
  // is fast wherever there is AVX-512.
  static HWY_INLINE Ints Spread(uint32_t window, uint32_t mask) {
    if constexpr (kPartLanes == kLanes) {
      const uint32_t bits = _pdep_u32(window, mask);
      uint8_t bytes[8] = {};
      std::memcpy(bytes, &bits, sizeof(bits));
      const auto set = hn::LoadMaskBits(kSignedTag, bytes);
      return hn::VecFromMask(kSignedTag, set);
    } else {
      const hn::Rebind<uint8_t, UintTag> d8;
      const auto ranks = hn::PromoteTo(kUintTag, hn::LoadU(d8, kRanks[mask].data()));
      const auto bits = hn::Shr(hn::Set(kUintTag, window & 0x7fffffff), ranks);
      return hn::BitCast(kSignedTag, bits);
    }
  }
  // The rank of each lane among those of a mask of eight; 31 for the others.
  static constexpr std::array<std::array<uint8_t, 8>, 256> kRanks = [] {
    std::array<std::array<uint8_t, 8>, 256> ranks = {};
    for (uint32_t mask = 0; mask < 256; ++mask) {
      for (uint32_t lane = 0, rank = 0; lane < 8; ++lane) {
        ranks[mask][lane] = mask >> lane & 1 ? static_cast<uint8_t>(rank++) : 31;
      }
    }
    return ranks;
  }();

  const std::byte* stream_;
  size_t bytes_;
  size_t at_ = 0;  // bits
};

// Cell::index_bits, read off the exponents of the counts as floats.
HWY_INLINE Uints CountBits(Ints count) {
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(kUintTag, hn::ConvertTo(kFloatTag, count)));
  return hn::Sub(exponent, hn::Set(kUintTag, 127u));
}

template <KvKind kKind>
void DecodeCentres(const DecodeBlockParams& p) {
  const int num_bits = p.rows[1] == nullptr   ? 2
                       : p.rows[2] == nullptr ? 3
                       : p.rows[3] == nullptr ? 4
                                              : 8;
  const auto centre = hn::Set(kFloatTag, static_cast<float>(1 << (8 - num_bits)) * 0.5f);
  VectorCursor<kKind> at(p.head_dim);
  Bf16* out = p.tile;
  for (int chunk = 0; chunk < p.head_dim / 4; ++chunk) {
    Uints bytes[4][kParts];
    LoadChunk(p, chunk, bytes);
    for (int j = 0; j < 4; ++j) {
      Unroll<4>([&](auto r) LYNX_LAMBDA {
        Unroll<kParts>([&](auto part) LYNX_LAMBDA {
          const auto q = hn::Add(TakeCode(bytes[r][part]), centre);
          const auto value = hn::MulAdd(q, at.Param(p.step, part), at.Param(p.lo, part));
          StoreHalves(RoundedHalves(value), out + part * kPartLanes);
        });
        out += kLanes;
        at.Next();
      });
    }
  }
}

template <KvKind kKind>
bool DecodeExact(const DecodeBlockParams& p) {
  const LiveMask live(p.live_begin, p.live_end);
  VectorCursor<kKind> at(p.head_dim);
  const size_t index_bytes = p.stream_words.index * sizeof(uint32_t);
  const size_t extra_bytes = p.stream_words.extra * sizeof(uint32_t);
  IndexReader reader(p.stream, index_bytes);
  ExtraReader extra(p.stream + index_bytes, extra_bytes);
  Bf16* out = p.tile;
  for (int chunk = 0; chunk < p.head_dim / 4; ++chunk) {
    Uints bytes[4][kParts];
    LoadChunk(p, chunk, bytes);
    for (int j = 0; j < 4; ++j) {
      Unroll<4>([&](auto r) LYNX_LAMBDA {
        Unroll<kParts>([&](auto part) LYNX_LAMBDA {
          const CellLanes cell =
              CellValues(TakeCode(bytes[r][part]), at.Param(p.step, part), at.Param(p.lo, part));
          // IndexOfCode; what is not live counts as a cell of one value.
          const auto width = CountBits(cell.count);
          const auto above = hn::BitCast(kSignedTag, hn::Shl(hn::Set(kUintTag, 2u), width));
          const auto bits =
              hn::BitCast(kSignedTag, reader.Read(hn::And(width, at.Live(live, part))));
          // The bits less num_short.
          const auto longer = hn::Add(bits, hn::Sub(cell.count, above));
          const auto none = hn::Zero(kSignedTag);
          const auto low = extra.Read(hn::Gt(longer, hn::Set(kSignedTag, -1)));
          const auto index = hn::Add(hn::Add(bits, hn::Max(longer, none)), low);
          StoreHalves(Bf16OfKey(hn::Add(cell.first, index)), out + part * kPartLanes);
        });
        out += kLanes;
        at.Next();
      });
    }
  }
  return (reader.position() + 31) / 32 * 4 == index_bytes &&
         (extra.position() + 31) / 32 * 4 == extra_bytes;
}

bool DecodeBlock(const DecodeBlockParams& p) {
  const bool key = p.kind == KvKind::kKey;
  if (p.stream != nullptr) {
    return key ? DecodeExact<KvKind::kKey>(p) : DecodeExact<KvKind::kValue>(p);
  }
  key ? DecodeCentres<KvKind::kKey>(p) : DecodeCentres<KvKind::kValue>(p);
  return true;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_DECODE_INL_H_
