// SPDX-License-Identifier: Apache-2.0
// Encoding a block on vectors. A step takes as many elements as a vector has 16-bit lanes, 16 or
// 32: float arithmetic on the even and the odd ones apart, which one instruction each gives, all
// else on 16-bit lanes, where they are in order again. Codes stand in a buffer until a chunk is
// whole. Index bits are joined eight lanes to a word on vectors, and appended word by word; extra
// bits are gathered by PEXT.
#if defined(LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
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

inline constexpr hn::RepartitionToNarrow<UintTag> kHalvesTag;
inline constexpr hn::RebindToSigned<decltype(kHalvesTag)> kKeyTag;
using Halves = hn::Vec<decltype(kHalvesTag)>;
inline constexpr int kStep = 2 * kPartLanes;  // elements

// ---- metadata -----------------------------------------------------------------------------------

template <class D, class V = hn::Vec<D>>
HWY_INLINE V OrderedKeys(D d, V bits) {
  return hn::Xor(bits, hn::And(hn::ShiftRight<15>(bits), hn::Set(d, int16_t{0x7fff})));
}
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

// Truncated to an integer in 0 .. 255.
HWY_INLINE Floats ClampCode(Floats t) {
  const auto zero = hn::Zero(kFloatTag), most = hn::Set(kFloatTag, 255.0f);
  return hn::Trunc(hn::Min(hn::Max(t, zero), most));
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

// ---- exact bits ---------------------------------------------------------------------------------

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

// ---- codes --------------------------------------------------------------------------------------

// Group parameters of the even and the odd elements of a step.
struct StepGroups {
  Floats lo[2], step[2], scale[2];  // scale: 1 / step, 0 for a constant group
};

HWY_INLINE Floats Scale(Floats step) {
  const auto one = hn::Set(kFloatTag, 1.0f);
  return hn::IfThenZeroElse(hn::Eq(step, hn::Zero(kFloatTag)), hn::Div(one, step));
}

// The group parameters of a block, step by step: At(place) for place = 0, Next(0), …
template <KvKind kKind>
class BlockGroups;

template <>
class BlockGroups<KvKind::kKey> {
 public:
  explicit BlockGroups(const EncodeBlockParams& p) {
    HWY_ALIGN float scale[kPartLanes];
    for (int c = 0; c < p.head_dim; c += kPartLanes) {
      hn::Store(Scale(hn::LoadU(kFloatTag, p.step + c)), kFloatTag, scale);
      for (int i = 0; i < kPartLanes; ++i)
        channels_[c + i] = {p.lo[c + i], p.step[c + i], scale[i]};
    }
  }
  HWY_INLINE int Next(int place) const { return place + kStep; }
  HWY_INLINE StepGroups At(int place) const {
    const Channel& of = channels_[place / kBlockSize];
    const auto lo = hn::Set(kFloatTag, of.lo), step = hn::Set(kFloatTag, of.step);
    const auto scale = hn::Set(kFloatTag, of.scale);
    return {{lo, lo}, {step, step}, {scale, scale}};
  }

 private:
  // Together: one base register serves all of a step's loads.
  struct Channel {
    float lo, step, scale;
  };
  Channel channels_[kMaxHeadDim];
};

template <>
class BlockGroups<KvKind::kValue> {
 public:
  explicit BlockGroups(const EncodeBlockParams& p) {
    // A step may go over the end of a token: then the parameters repeat after two tokens.
    const int num_tokens = p.head_dim % kStep == 0 ? 1 : 2;
    period_ = p.head_dim * num_tokens;
    float lo[2 * kMaxHeadDim], step[2 * kMaxHeadDim];
    for (int i = 0; i < num_tokens; ++i) {
      std::memcpy(lo + i * p.head_dim, p.lo, p.head_dim * sizeof(float));
      std::memcpy(step + i * p.head_dim, p.step, p.head_dim * sizeof(float));
    }
    for (int e = 0; e < period_; e += kStep) {
      PutEvenOdd(lo + e, lo_ + e);
      PutEvenOdd(step + e, step_ + e);
      for (int i = 0; i < kStep; i += kPartLanes) {
        hn::Store(Scale(hn::Load(kFloatTag, step_ + e + i)), kFloatTag, scale_ + e + i);
      }
    }
  }
  HWY_INLINE int Next(int place) const { return place + kStep == period_ ? 0 : place + kStep; }
  HWY_INLINE StepGroups At(int place) const {
    const auto load = [&](const float* all, int odd) LYNX_LAMBDA {
      return hn::Load(kFloatTag, all + place + odd * kPartLanes);
    };
    return {{load(lo_, 0), load(lo_, 1)},
            {load(step_, 0), load(step_, 1)},
            {load(scale_, 0), load(scale_, 1)}};
  }

 private:
  static HWY_INLINE void PutEvenOdd(const float* in, float* out) {
    const auto first = hn::LoadU(kFloatTag, in), second = hn::LoadU(kFloatTag, in + kPartLanes);
    hn::Store(hn::ConcatEven(kFloatTag, second, first), kFloatTag, out);
    hn::Store(hn::ConcatOdd(kFloatTag, second, first), kFloatTag, out + kPartLanes);
  }

  HWY_ALIGN float lo_[2 * kMaxHeadDim];
  HWY_ALIGN float step_[2 * kMaxHeadDim];
  HWY_ALIGN float scale_[2 * kMaxHeadDim];
  int period_ = 0;
};

// All ones for the live tokens of a step.
template <KvKind kKind>
class LiveHalves {
 public:
  explicit LiveHalves(const EncodeBlockParams& p)
      : whole_(p.live_begin == 0 && p.live_end == kBlockSize),
        begin_(static_cast<int16_t>(p.live_begin * Unit(p))),
        end_(static_cast<int16_t>(p.live_end * Unit(p))) {}
  bool whole() const { return whole_; }
  HWY_INLINE Halves At(int element) const {
    const int first = kKind == KvKind::kKey ? element % kBlockSize : element;
    const auto at = hn::Iota(kKeyTag, static_cast<int16_t>(first));
    const auto before = hn::Lt(at, hn::Set(kKeyTag, begin_));
    const auto inside = hn::AndNot(before, hn::Lt(at, hn::Set(kKeyTag, end_)));
    return hn::BitCast(kHalvesTag, hn::VecFromMask(kKeyTag, inside));
  }

 private:
  // Elements of a token that are neighbours.
  static int Unit(const EncodeBlockParams& p) { return kKind == KvKind::kKey ? 1 : p.head_dim; }

  bool whole_;
  int16_t begin_, end_;
};

struct CodedStep {
  Halves code;
  Halves index;
  Halves count;
};

HWY_INLINE Halves JoinLower(Uints even, Uints odd) {
  return hn::OddEven(hn::BitCast(kHalvesTag, hn::ShiftLeft<16>(odd)),
                     hn::BitCast(kHalvesTag, even));
}
HWY_INLINE Halves JoinUpper(Ints even, Ints odd) {
  const auto down = hn::ShiftRight<16>(hn::BitCast(kUintTag, even));
  return hn::OddEven(hn::BitCast(kHalvesTag, odd), hn::BitCast(kHalvesTag, down));
}

// The key of the smallest BF16 value not below f is that of the upper half.
HWY_INLINE Ints RoundUp(Floats f) {
  const auto bits = hn::BitCast(kSignedTag, f);
  const auto up = hn::Add(bits, hn::Set(kSignedTag, 0xffff));
  if constexpr (kPartLanes == kLanes) {
    return hn::IfThenElse(hn::Gt(bits, hn::Set(kSignedTag, -1)), up, bits);
  } else {
    return hn::IfNegativeThenElse(bits, bits, up);
  }
}
HWY_INLINE Halves KeysOf(Halves bits) {
  return hn::BitCast(kHalvesTag, OrderedKeys(kKeyTag, hn::BitCast(kKeyTag, bits)));
}

HWY_INLINE Floats Code(Floats x, Floats step, Floats scale, Floats lo) {
  const auto one = hn::Set(kFloatTag, 1.0f);
  step = hn::IfThenElse(hn::Eq(step, hn::Zero(kFloatTag)), one, step);
  const auto q = ClampCode(hn::Mul(hn::Sub(x, lo), scale));
  const auto below = hn::Gt(hn::MulAdd(q, step, lo), x);
  const auto above = hn::Le(hn::MulAdd(hn::Add(q, one), step, lo), x);
  return hn::Add(hn::Sub(q, hn::IfThenElseZero(below, one)), hn::IfThenElseZero(above, one));
}

// A step that has an estimate which is one off, an empty cell or a constant group.
HWY_NOINLINE void CodeCarefully(const Bf16* in, const StepGroups& g, CodedStep& coded) {
  const auto words = hn::LoadU(kUintTag, reinterpret_cast<const uint32_t*>(in));
  const auto upper = hn::Set(kUintTag, 0xffff0000u);
  const Uints bits[2] = {hn::ShiftLeft<16>(words), hn::And(words, upper)};
  Uints code[2], index[2], count[2];
  for (int i = 0; i < 2; ++i) {
    const auto value = hn::BitCast(kSignedTag, bits[i]);
    const auto q = Code(BoundOperand(value), g.step[i], g.scale[i], g.lo[i]);
    const CellLanes cell = CellValues(q, g.step[i], g.lo[i]);
    code[i] = hn::BitCast(kUintTag, hn::ConvertTo(kSignedTag, q));
    index[i] = hn::BitCast(kUintTag, hn::Sub(OrderedKeyOfBits(value), cell.first));
    count[i] = hn::BitCast(kUintTag, cell.count);
  }
  coded.code = JoinLower(code[0], code[1]);
  coded.index = JoinLower(index[0], index[1]);
  coded.count = JoinLower(count[0], count[1]);
}

// The estimate of a code is right when the value's key lies between those of the cell's bounds.
HWY_INLINE bool CodeStep(const Bf16* in, const StepGroups& g, CodedStep& coded) {
  const auto one = hn::Set(kFloatTag, 1.0f);
  const auto integers = hn::Set(kFloatTag, 0x1p23f);  // added, bits are those of an integer
  const auto words = hn::LoadU(kUintTag, reinterpret_cast<const uint32_t*>(in));
  const Uints bits[2] = {hn::ShiftLeft<16>(words), hn::And(words, hn::Set(kUintTag, 0xffff0000u))};
  Uints code[2];
  Ints first[2], end[2];
  Unroll<2>([&](auto i) LYNX_LAMBDA {
    const auto x = hn::BitCast(kFloatTag, bits[i]);
    const auto q = hn::Trunc(hn::Mul(hn::Sub(x, g.lo[i]), g.scale[i]));
    code[i] = hn::BitCast(kUintTag, hn::Add(q, integers));
    first[i] = RoundUp(hn::MulAdd(q, g.step[i], g.lo[i]));
    end[i] = RoundUp(hn::MulAdd(hn::Add(q, one), g.step[i], g.lo[i]));
  });
  const auto first_key = KeysOf(JoinUpper(first[0], first[1]));
  const auto count = hn::Sub(KeysOf(JoinUpper(end[0], end[1])), first_key);
  const auto index = hn::Sub(KeysOf(hn::BitCast(kHalvesTag, words)), first_key);
  const auto outside = hn::Eq(hn::SaturatedSub(count, index), hn::Zero(kHalvesTag));
  coded.code = JoinLower(code[0], code[1]);
  coded.index = index;
  coded.count = count;
  return hn::AllFalse(kHalvesTag, outside);
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

// Merges the codes of a chunk: bytes[r][part] gets those of vectors 4j + r.
HWY_INLINE void GatherChunk(const uint16_t* codes, Uints (&bytes)[4][kParts]) {
  constexpr int kFour = 4 * kLanes;
  Unroll<kFour / kPartLanes>([&](auto i) LYNX_LAMBDA {
    Uints half[2];
    const hn::Half<decltype(kHalvesTag)> d;
    Unroll<2>([&](auto h) LYNX_LAMBDA {
      const uint16_t* p = codes + i * kPartLanes + h * 2 * kFour;
      const auto first = hn::LoadU(d, p), second = hn::LoadU(d, p + kFour);
      half[h] = hn::PromoteTo(kUintTag, hn::Or(first, hn::ShiftLeft<8>(second)));
    });
    bytes[i / kParts][i % kParts] = hn::Or(half[0], hn::ShiftLeft<16>(half[1]));
  });
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

// Puts the extra bits behind the index bits; sizes in bytes.
HWY_INLINE StreamWords JoinStreams(std::byte* index, size_t index_bytes, const std::byte* extra,
                                   size_t extra_bytes) {
  std::memcpy(index + index_bytes, extra, extra_bytes);
  return {static_cast<uint32_t>(index_bytes / sizeof(uint32_t)),
          static_cast<uint32_t>(extra_bytes / sizeof(uint32_t))};
}

template <KvKind kKind>
StreamWords EncodeRows(const EncodeBlockParams& p) {
  constexpr int kChunk = kLanes * kLanes;
  const BlockGroups<kKind> groups(p);
  const Bf16* in = p.tile;
  int place = 0;
  const LiveHalves<kKind> live(p);
  const bool exact = p.stream != nullptr;
  std::byte extra_bytes[kBlockSize * kMaxHeadDim / 8 + sizeof(uint64_t)];
  BitAppender stream(p.stream), extra(extra_bytes);
  HWY_ALIGN uint16_t codes[kChunk];
  Uints pair[2][kParts];
  for (int chunk = 0; chunk < p.head_dim / 4; ++chunk) {
    for (int i = 0; i < kChunk; i += kStep) {
      CodedStep coded;
      if (!CodeStep(in, groups.At(place), coded)) [[unlikely]] {
        // A variable of its own, so that the other's vectors stay in registers.
        CodedStep careful;
        CodeCarefully(in, groups.At(place), careful);
        coded = careful;
      }
      in += kStep;
      place = groups.Next(place);
      hn::Store(coded.code, kHalvesTag, codes + i);
      if (!exact) continue;
      if (!live.whole()) {
        const auto mask = live.At(chunk * kChunk + i);
        coded.index = hn::And(coded.index, mask);
        coded.count = hn::Max(hn::And(coded.count, mask), hn::Set(kHalvesTag, uint16_t{1}));
      }
      AppendIndices(coded.index, coded.count, stream, extra);
    }
    Uints bytes[4][kParts];
    GatherChunk(codes, bytes);
    StoreChunk(bytes, p, chunk, pair);
    if (chunk % 2 == 0) continue;
    Unroll<kParts>([&](auto part) LYNX_LAMBDA {
      StoreRow(pair[0][part], p.rows[1], chunk / 2, part);
      StoreRow(pair[1][part], p.rows[2], chunk / 2, part);
    });
  }
  return exact ? JoinStreams(p.stream, stream.Finish(), extra_bytes, extra.Finish())
               : StreamWords{};
}

StreamWords EncodeBlock(const EncodeBlockParams& p) {
  return p.kind == KvKind::kKey ? EncodeRows<KvKind::kKey>(p) : EncodeRows<KvKind::kValue>(p);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#endif  // LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
