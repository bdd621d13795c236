// SPDX-License-Identifier: Apache-2.0
// Encoding a block on vectors. Two chunks of 16 vectors at a time, since planes 1 and 2 pair them:
// the codes of vectors 4j + r of a chunk are first gathered as byte j of four dwords (r = 0 .. 3),
// which then come apart into the planes' rows with a few masks. Exact bits are packed four lanes
// to a 64-bit word on vectors, and appended word by word.
#if defined(LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/plane_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

inline constexpr hn::CappedTag<int16_t, 16> kKeyTag;
using Keys = hn::Vec<decltype(kKeyTag)>;

HWY_INLINE Keys LoadKeys(const Bf16* p) {
  const auto bits = hn::LoadU(kKeyTag, reinterpret_cast<const int16_t*>(p));
  const auto magnitude = hn::Set(kKeyTag, int16_t{0x7fff});
  return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), magnitude));
}

// The smallest of 16 keys.
HWY_INLINE int16_t SmallestKey(Keys keys) {
  const hn::Half<decltype(kKeyTag)> d8;
  const hn::RebindToUnsigned<decltype(d8)> u8;
  const auto eight = hn::Min(hn::LowerHalf(d8, keys), hn::UpperHalf(d8, keys));
  const auto bias = hn::Set(u8, uint16_t{0x8000});
  const auto least = hn::MinOfLanes(u8, hn::Xor(hn::BitCast(u8, eight), bias));
  return static_cast<int16_t>(hn::GetLane(least) ^ 0x8000);
}

void KeyRange(KvKind kind, int head_dim, const Bf16* tile, int16_t* min_key, int16_t* max_key) {
  if (kind == KvKind::kKey) {
    for (int c = 0; c < head_dim; ++c, tile += kBlockSize) {
      Keys least = LoadKeys(tile), greatest = least;
      for (int t = kLanes; t < kBlockSize; t += kLanes) {
        const Keys keys = LoadKeys(tile + t);
        least = hn::Min(least, keys);
        greatest = hn::Max(greatest, keys);
      }
      min_key[c] = SmallestKey(least);
      max_key[c] = static_cast<int16_t>(~SmallestKey(hn::Not(greatest)));
    }
    return;
  }
  for (int c = 0; c < head_dim; c += kLanes) {
    Keys least = LoadKeys(tile + c), greatest = least;
    for (int t = 1; t < kBlockSize; ++t) {
      const Keys keys = LoadKeys(tile + t * head_dim + c);
      least = hn::Min(least, keys);
      greatest = hn::Max(greatest, keys);
    }
    hn::StoreU(least, kKeyTag, min_key + c);
    hn::StoreU(greatest, kKeyTag, max_key + c);
  }
}

// Truncated to an integer in 0 .. 255.
HWY_INLINE Floats ClampCode(Floats t) {
  const auto zero = hn::Zero(kFloatTag), most = hn::Set(kFloatTag, 255.0f);
  return hn::ConvertTo(kFloatTag, hn::ConvertTo(kSignedTag, hn::Min(hn::Max(t, zero), most)));
}

HWY_INLINE Floats GroupStep(Floats low, Floats high, Floats unit) {
  const auto width = hn::Sub(hn::Add(high, hn::Set(kFloatTag, 1.0f)), low);
  return hn::Mul(width, hn::Mul(unit, hn::Set(kFloatTag, 0x1p-8f)));
}

// The values of keys as operands of comparisons with bounds.
HWY_INLINE Floats LoadKeyOperands(const int16_t* keys) {
  const hn::Rebind<int16_t, SignedTag> d;
  const auto bits = Bf16OfKey(hn::PromoteTo(kSignedTag, hn::LoadU(d, keys)));
  return BoundOperand(hn::BitCast(kSignedTag, hn::ShiftLeft<16>(bits)));
}

void GroupCodes(const GroupCodesParams& p) {
  const auto one = hn::Set(kFloatTag, 1.0f), zero = hn::Zero(kFloatTag);
  const auto cells = hn::Set(kFloatTag, 256.0f), most = hn::Set(kFloatTag, 255.0f);
  for (int c = 0; c < p.head_dim; c += kPartLanes) {
    const auto page_lo = hn::LoadU(kFloatTag, p.page_lo + c);
    const auto unit = hn::LoadU(kFloatTag, p.unit + c);
    const auto least = LoadKeyOperands(p.min_key + c);
    const auto greatest = LoadKeyOperands(p.max_key + c);
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

// Appends words of up to 64 bits; may write eight bytes past the end.
class BitAppender {
 public:
  explicit BitAppender(std::byte* out) : begin_(out), out_(out) {}
  HWY_INLINE void Append(uint64_t word, unsigned bits) {
    pending_ |= word << num_pending_;
    std::memcpy(out_, &pending_, sizeof(pending_));
    const unsigned filled = num_pending_ + bits;
    const uint64_t rest = (word >> 1) >> (63 - num_pending_);
    pending_ = filled >= 64 ? rest : pending_;
    out_ += filled >= 64 ? 8 : 0;
    num_pending_ = filled % 64;
  }
  // Bytes of the whole stream, a multiple of four; the last ones are filled up with zeros.
  size_t Finish() {
    std::memcpy(out_, &pending_, sizeof(pending_));
    return static_cast<size_t>(out_ - begin_) + (num_pending_ + 31) / 32 * 4;
  }

 private:
  std::byte* begin_;
  std::byte* out_;
  uint64_t pending_ = 0;
  unsigned num_pending_ = 0;
};

// Lane i holds `bits` bits of index.
HWY_INLINE void AppendLanes(Uints index, Uints bits, BitAppender& stream) {
  const auto lower = hn::Set(kWideTag, 0xffffffffu);
  const auto index64 = hn::BitCast(kWideTag, index), bits64 = hn::BitCast(kWideTag, bits);
  const auto even_bits = hn::And(bits64, lower);
  auto word = hn::Or(hn::And(index64, lower), hn::Shl(hn::ShiftRight<32>(index64), even_bits));
  auto size = hn::Add(even_bits, hn::ShiftRight<32>(bits64));
  word = hn::Or(word, hn::Shl(hn::ShiftRightLanes<1>(kWideTag, word), size));
  size = hn::Add(size, hn::ShiftRightLanes<1>(kWideTag, size));
  HWY_ALIGN uint64_t words[kPartLanes / 2];
  HWY_ALIGN uint64_t sizes[kPartLanes / 2];
  hn::Store(word, kWideTag, words);
  hn::Store(size, kWideTag, sizes);
  uint64_t joined = words[0], total = sizes[0];
  for (int i = 2; i < kPartLanes / 2; i += 2) {
    joined |= words[i] << total % 64;
    total += sizes[i];
  }
  if (total < 64) [[likely]] {
    stream.Append(joined, static_cast<unsigned>(total));
    return;
  }
  for (int i = 0; i < kPartLanes / 2; i += 2) {
    stream.Append(words[i], static_cast<unsigned>(sizes[i]));
  }
}

// Group parameters for encoding: a constant group takes step 1, which puts its value into cell 0.
struct EncodeGroups {
  float step[kMaxHeadDim];
  float scale[kMaxHeadDim];  // 1 / step
  EncodeGroups(const float* steps, int head_dim) {
    const auto zero = hn::Zero(kFloatTag), one = hn::Set(kFloatTag, 1.0f);
    for (int c = 0; c < head_dim; c += kPartLanes) {
      const auto s = hn::LoadU(kFloatTag, steps + c);
      const auto constant = hn::Eq(s, zero);
      hn::StoreU(hn::IfThenElse(constant, one, s), kFloatTag, step + c);
      hn::StoreU(hn::IfThenZeroElse(constant, hn::Div(one, s)), kFloatTag, scale + c);
    }
  }
};

HWY_INLINE Floats Code(Floats x, Floats step, Floats scale, Floats lo) {
  const auto one = hn::Set(kFloatTag, 1.0f);
  const auto q = ClampCode(hn::Mul(hn::Sub(x, lo), scale));
  const auto below = hn::Gt(hn::MulAdd(q, step, lo), x);
  const auto above = hn::Le(hn::MulAdd(hn::Add(q, one), step, lo), x);
  return hn::Add(hn::Sub(q, hn::IfThenElseZero(below, one)), hn::IfThenElseZero(above, one));
}

// Chunk `chunk` of the block: bytes[r][part] has the codes of vectors 4j + r.
HWY_INLINE void StoreChunk(const Uints (&bytes)[4][kParts], const EncodeBlockParams& p, int chunk,
                           Uints (&pair)[2][kParts]) {
  const auto low_nibbles = hn::Set(kUintTag, 0x0f0f0f0fu), pairs = hn::Set(kUintTag, 0x33333333u);
  const auto bits = hn::Set(kUintTag, 0x55555555u);
  Unroll<kParts>([&](auto part) LYNX_LAMBDA {
    Uints high[2], second[2];
    for (int r = 0; r < 2; ++r) {
      const auto first = bytes[r][part], last = bytes[r + 2][part];
      const auto low =
          hn::Or(hn::And(first, low_nibbles), hn::ShiftLeft<4>(hn::And(last, low_nibbles)));
      StoreRow(low, p.rows[3], static_cast<size_t>(chunk) * 2 + r, part);
      high[r] =
          hn::Or(hn::And(hn::ShiftRight<4>(first), low_nibbles), hn::AndNot(low_nibbles, last));
      second[r] = hn::And(high[r], pairs);
    }
    const auto top = hn::Or(hn::And(hn::ShiftRight<2>(high[0]), pairs), hn::AndNot(pairs, high[1]));
    StoreRow(top, p.rows[0], chunk, part);
    const auto middle = hn::Or(second[0], hn::ShiftLeft<2>(second[1]));
    const auto bit3 = hn::And(hn::ShiftRight<1>(middle), bits), bit4 = hn::And(middle, bits);
    pair[0][part] = chunk % 2 == 0 ? bit3 : hn::Or(pair[0][part], hn::Add(bit3, bit3));
    pair[1][part] = chunk % 2 == 0 ? bit4 : hn::Or(pair[1][part], hn::Add(bit4, bit4));
  });
}

template <KvKind kKind, bool kExact>
size_t EncodeRows(const EncodeBlockParams& p) {
  const EncodeGroups groups(p.step, p.head_dim);
  const LiveMask live(p.live_begin, p.live_end);
  VectorCursor<kKind> at(p.head_dim);
  BitAppender stream(p.stream);
  const Bf16* in = p.tile;
  Uints pair[2][kParts];
  for (int chunk = 0; chunk < p.head_dim / 4; ++chunk) {
    Uints bytes[4][kParts];
    Unroll<4 * kParts>([&](auto i)
                           LYNX_LAMBDA { bytes[i / kParts][i % kParts] = hn::Zero(kUintTag); });
    for (int j = 0; j < 4; ++j) {
      Unroll<4>([&](auto r) LYNX_LAMBDA {
        Unroll<kParts>([&](auto part) LYNX_LAMBDA {
          const auto value = LoadBf16Bits(in + part * kPartLanes);
          const auto lo = at.Param(p.lo, part);
          const auto q = Code(BoundOperand(value), at.Param(groups.step, part),
                              at.Param(groups.scale, part), lo);
          const auto code = hn::BitCast(kUintTag, hn::ConvertTo(kSignedTag, q));
          // The codes move down: the first of four ends up in byte 0.
          bytes[r][part] = hn::Or(hn::ShiftRight<8>(bytes[r][part]), hn::ShiftLeft<24>(code));
          if constexpr (kExact) {
            const CellLanes cell = CellValues(q, at.Param(p.step, part), lo);
            const auto mask = at.Live(live, part);
            const auto index = hn::Sub(OrderedKeyOfBits(value), cell.first);
            AppendLanes(hn::And(hn::BitCast(kUintTag, index), mask),
                        hn::And(IndexBits(cell.last_index), mask), stream);
          }
        });
        in += kLanes;
        at.Next();
      });
    }
    StoreChunk(bytes, p, chunk, pair);
    if (chunk % 2 == 0) continue;
    Unroll<kParts>([&](auto part) LYNX_LAMBDA {
      StoreRow(pair[0][part], p.rows[1], chunk / 2, part);
      StoreRow(pair[1][part], p.rows[2], chunk / 2, part);
    });
  }
  return kExact ? stream.Finish() : 0;
}

size_t EncodeBlock(const EncodeBlockParams& p) {
  const bool exact = p.stream != nullptr;
  if (p.kind == KvKind::kKey) {
    return exact ? EncodeRows<KvKind::kKey, true>(p) : EncodeRows<KvKind::kKey, false>(p);
  }
  return exact ? EncodeRows<KvKind::kValue, true>(p) : EncodeRows<KvKind::kValue, false>(p);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
