// SPDX-License-Identifier: Apache-2.0
// Encoding a block on vectors. A step takes as many elements as a vector has 16-bit lanes, 16 or
// 32: float arithmetic on the even and the odd ones apart, which one instruction each gives, all
// else on 16-bit lanes, where they are in order again. Codes stand in a buffer until a chunk is
// whole.
#if defined(LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#undef LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#else
#define LYNX_KERNELS_CPU_PLANE_ENCODE_INL_H_
#endif

#include <cstring>

#include "kernels/cpu/plane_exact_bits-inl.h"
#include "kernels/cpu/plane_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

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
