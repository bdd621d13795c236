// SPDX-License-Identifier: Apache-2.0
// "cachegen": CacheGen (SIGCOMM 2024, arXiv 2310.07240) on one page of one head. Tokens go in
// chunks of ten; the first is the anchor token, in 8 bits; the others are differences from the
// decoded anchor token, in bins that grow coarser with depth, range-coded by channel. Every token's
// vector has a scale. As in the published program, keys of the first 10/32 and values of the first
// 2/32 of the layers have codes -15 .. 15 and the others -7 .. 7. Its probability tables are
// profiled per model, layer and channel; here they are in the page, for eight classes of channels,
// so that a page needs nothing but itself.
//
// One plane, n tokens, A = ceil(n / 10) anchor tokens:
//   u8 limit             15 or 7
//   A x {u16 scale, int8 code [head_dim]}       anchor tokens: scale = absmax / 127 (BF16)
//   only if n > A:
//     u16 scale [n - A]                         absmax / limit (BF16)
//     u8 class [head_dim]                       0 .. 7
//     8 x u16 frequency [limit + 1]             of code 0, and of code +m (-m has the same)
//     the range coder's stream (range_coder.h) of the codes, token by token, channel by channel;
//     symbols in the order 0, +1, -1, +2, -2 ...
// value = scale * code for anchor tokens, rounded to BF16, and anchor value + scale * code for the
// others, rounded to float32 and then to BF16. NaN counts as 0, Inf as the largest finite value.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "codec/codecs.h"
#include "codec/range_coder.h"
#include "codec/tile_access.h"
#include "codec/wide_loops.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr int kChunk = 10;
constexpr int kAnchorLimit = 127;
constexpr int kFineLimit = 15, kCoarseLimit = 7;
constexpr int kNumClasses = 8;
constexpr float kLargestBf16 = 0x1.fep127f;

int LimitOf(const PageShape& shape) {
  const int fine_32nds = shape.kind == KvKind::kKey ? 10 : 2;
  const bool fine = shape.num_layers == 0 || shape.layer * 32 < fine_32nds * shape.num_layers;
  return fine ? kFineLimit : kCoarseLimit;
}

// Where the parts of the plane begin.
struct Layout {
  Layout(const PageShape& shape, int limit)
      : num_anchors((shape.num_tokens + kChunk - 1) / kChunk),
        num_deltas(shape.num_tokens - num_anchors),
        anchor_bytes(sizeof(Bf16) + shape.head_dim),
        scales(1 + num_anchors * anchor_bytes),
        classes(scales + num_deltas * sizeof(Bf16)),
        frequencies(classes + shape.head_dim),
        table_bytes((limit + 1) * sizeof(uint16_t)),
        stream(frequencies + kNumClasses * table_bytes) {}
  size_t num_anchors;
  size_t num_deltas;
  size_t anchor_bytes;
  size_t scales;
  size_t classes;
  size_t frequencies;
  size_t table_bytes;
  size_t stream;
};

// The frequencies of one class.
class Table {
 public:
  // [limit + 1]: of 0 and of each magnitude. False when they do not sum to kRangeTotal.
  bool Set(const uint16_t* frequencies, int limit) {
    uint32_t begin = frequencies[0];
    ranges_[0] = {0, frequencies[0]};
    for (int m = 1; m <= limit; ++m) {
      const uint32_t f = frequencies[m];
      ranges_[2 * m - 1] = {begin, f};
      ranges_[2 * m] = {begin + f, f};
      begin += 2 * f;
    }
    num_symbols_ = 2 * limit + 1;
    return begin == kRangeTotal;
  }
  SymbolRange range(int symbol) const { return ranges_[symbol]; }
  // [kRangeTotal]: the symbol at each place. Only after Set gave true.
  void FillSymbols(uint8_t* symbols) const {
    for (int s = 0; s < num_symbols_; ++s) {
      std::fill_n(symbols + ranges_[s].begin, ranges_[s].frequency, static_cast<uint8_t>(s));
    }
  }

 private:
  std::array<SymbolRange, 2 * kFineLimit + 1> ranges_;
  int num_symbols_ = 0;
};

int SymbolOf(int code) { return code > 0 ? 2 * code - 1 : -2 * code; }
int CodeOf(int symbol) { return (symbol & 1) != 0 ? (symbol + 1) / 2 : -(symbol / 2); }

// Frequencies from how often each magnitude occurs; none that occurs gets 0.
void Normalize(const uint32_t* counts, int limit, uint16_t* frequencies) {
  const uint64_t total = std::accumulate(counts, counts + limit + 1, uint64_t{0});
  int rest = kRangeTotal;
  for (int m = 1; m <= limit; ++m) {
    const auto share = static_cast<int>(counts[m] * uint64_t{kRangeTotal} / (2 * total));
    frequencies[m] = static_cast<uint16_t>(std::max(share, counts[m] > 0 ? 1 : 0));
    rest -= 2 * frequencies[m];
  }
  for (; rest < (counts[0] > 0 ? 1 : 0); rest += 2) {
    --*std::max_element(frequencies + 1, frequencies + limit + 1);
  }
  frequencies[0] = static_cast<uint16_t>(rest);
}

// class_of [head_dim]: an eighth of the channels each, by the size of their codes.
void ClassifyChannels(const std::vector<int8_t>& codes, int head_dim, uint8_t* class_of) {
  std::array<uint32_t, kMaxHeadDim> sum = {};
  for (size_t i = 0; i < codes.size(); i += head_dim) {
    for (int c = 0; c < head_dim; ++c) sum[c] += std::abs(codes[i + c]);
  }
  std::array<uint8_t, kMaxHeadDim> order;
  std::iota(order.begin(), order.begin() + head_dim, uint8_t{0});
  std::stable_sort(order.begin(), order.begin() + head_dim,
                   [&](uint8_t a, uint8_t b) { return sum[a] < sum[b]; });
  for (int i = 0; i < head_dim; ++i) {
    class_of[order[i]] = static_cast<uint8_t>(i * kNumClasses / head_dim);
  }
}

// y [n] -> codes and their scale.
LYNX_WIDE_LOOPS Bf16 QuantizeVector(const float* y, int n, int limit, int8_t* code) {
  float absmax = 0;
  for (int c = 0; c < n; ++c) absmax = std::max(absmax, std::abs(y[c]));
  const auto most = static_cast<float>(limit);
  const Bf16 scale = FiniteBf16(absmax / most);
  const float step = StepOf(scale);
  for (int c = 0; c < n; ++c) {
    code[c] = static_cast<int8_t>(RoundToEven(std::clamp(y[c] / step, -most, most)));
  }
  return scale;
}

// base [n] may be null.
LYNX_WIDE_LOOPS void RestoreVector(const float* base, const int8_t* code, float step, int n,
                                   Bf16* x) {
  for (int c = 0; c < n; ++c) {
    const float y = static_cast<float>(code[c]) * step;
    x[c] = FiniteBf16(base == nullptr ? y : base[c] + y);
  }
}

LYNX_WIDE_LOOPS void ToFloats(const Bf16* x, int n, float* y) {
  for (int c = 0; c < n; ++c) y[c] = ToFloat(x[c]);
}

// What is left of x after the anchor token, at most the largest BF16 number.
LYNX_WIDE_LOOPS void Subtract(const float* base, int n, float* x) {
  for (int c = 0; c < n; ++c) x[c] = std::clamp(x[c] - base[c], -kLargestBf16, kLargestBf16);
}

void ReadFinite(const PageShape& shape, const PageTiles& tiles, int t, float* y) {
  Bf16 x[kMaxHeadDim];
  ReadToken(shape, tiles, t, x);
  for (int c = 0; c < shape.head_dim; ++c) y[c] = ToFloat(Finite(x[c]));
}

template <typename T>
void Put(std::vector<std::byte>& out, const T* values, size_t n) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), bytes, bytes + n * sizeof(T));
}

bool IsScale(Bf16 scale) { return scale.bits < kBf16Infinity; }

class CachegenCodec final : public Codec {
 public:
  std::string_view name() const override { return "cachegen"; }
  std::span<const PlaneSpec> planes() const override { return kPlanes; }
  bool lossless() const override { return false; }

  size_t MaxPlaneBytes(const PageShape& shape, int) const override {
    const Layout layout(shape, kFineLimit);
    if (layout.num_deltas == 0) return layout.scales;
    return layout.stream + RangeEncoder::MaxBytes(layout.num_deltas * shape.head_dim);
  }

  void Encode(const PageShape& shape, const PageTiles& tiles,
              std::span<std::vector<std::byte>> planes) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const int head_dim = shape.head_dim, limit = LimitOf(shape);
    std::vector<std::byte>& out = planes[0];
    out.push_back(std::byte(limit));
    std::vector<int8_t> codes;  // [num_deltas][head_dim]
    std::vector<Bf16> scales;   // [num_deltas]
    float y[kMaxHeadDim], anchor[kMaxHeadDim];
    int8_t code[kMaxHeadDim];
    for (int t = 0; t < shape.num_tokens; ++t) {
      ReadFinite(shape, tiles, t, y);
      if (t % kChunk == 0) {
        const Bf16 scale = QuantizeVector(y, head_dim, kAnchorLimit, code);
        Put(out, &scale, 1);
        Put(out, code, head_dim);
        RestoreAnchor(code, scale, head_dim, anchor);
        continue;
      }
      Subtract(anchor, head_dim, y);
      scales.push_back(QuantizeVector(y, head_dim, limit, code));
      codes.insert(codes.end(), code, code + head_dim);
    }
    if (scales.empty()) return;
    Put(out, scales.data(), scales.size());
    PutCodes(codes, head_dim, limit, out);
  }

  absl::Status Decode(const PageShape& shape, std::span<const std::span<const std::byte>> planes,
                      const MutablePageTiles& tiles) const override {
    LYNX_CHECK(shape.head_dim <= kMaxHeadDim);
    const absl::Status status = DecodePlane(shape, planes[0], tiles);
    if (!status.ok()) ClearPage(shape, tiles);
    return status;
  }

 private:
  static constexpr PlaneSpec kPlanes[] = {{"cachegen", 0}};

  static void RestoreAnchor(const int8_t* code, Bf16 scale, int head_dim, float* anchor) {
    Bf16 x[kMaxHeadDim];
    RestoreVector(nullptr, code, ToFloat(scale), head_dim, x);
    ToFloats(x, head_dim, anchor);
  }

  // Classes, tables and stream.
  static void PutCodes(const std::vector<int8_t>& codes, int head_dim, int limit,
                       std::vector<std::byte>& out) {
    uint8_t class_of[kMaxHeadDim];
    ClassifyChannels(codes, head_dim, class_of);
    Put(out, class_of, head_dim);
    uint32_t counts[kNumClasses][kFineLimit + 1] = {};
    for (size_t i = 0; i < codes.size(); i += head_dim) {
      for (int c = 0; c < head_dim; ++c) ++counts[class_of[c]][std::abs(codes[i + c])];
    }
    Table tables[kNumClasses];
    for (int k = 0; k < kNumClasses; ++k) {
      uint16_t frequencies[kFineLimit + 1];
      Normalize(counts[k], limit, frequencies);
      LYNX_CHECK(tables[k].Set(frequencies, limit));
      Put(out, frequencies, limit + 1);
    }
    RangeEncoder encoder;
    for (size_t i = codes.size(); i-- > 0;) {
      encoder.Put(tables[class_of[i % head_dim]].range(SymbolOf(codes[i])));
    }
    encoder.Finish(out);
  }

  absl::Status DecodePlane(const PageShape& shape, std::span<const std::byte> plane,
                           const MutablePageTiles& tiles) const {
    if (plane.empty()) return WrongPlaneSize(name(), 0, 0, 1);
    const int limit = std::to_integer<int>(plane[0]);
    if (limit != kFineLimit && limit != kCoarseLimit) {
      return WrongNumber(name(), absl::StrCat("codes to ", limit, ", want to 7 or 15"));
    }
    const Layout layout(shape, limit);
    const bool has_stream = layout.num_deltas > 0;
    const size_t least = has_stream ? layout.stream : layout.scales;
    if (plane.size() < least || (!has_stream && plane.size() > least)) {
      return WrongPlaneSize(name(), 0, plane.size(), least);
    }
    std::vector<int8_t> codes(layout.num_deltas * shape.head_dim);
    if (has_stream && !GetCodes(plane, layout, shape.head_dim, limit, codes)) {
      return WrongNumber(name(), "the range-coded codes are damaged");
    }
    if (!RestoreTokens(shape, plane, layout, codes, tiles)) {
      return WrongNumber(name(), "a scale is not a finite number above or equal to 0");
    }
    return absl::OkStatus();
  }

  static bool GetCodes(std::span<const std::byte> plane, const Layout& layout, int head_dim,
                       int limit, std::vector<int8_t>& codes) {
    uint8_t class_of[kMaxHeadDim];
    std::memcpy(class_of, &plane[layout.classes], head_dim);
    if (*std::max_element(class_of, class_of + head_dim) >= kNumClasses) return false;
    Table tables[kNumClasses];
    std::vector<uint8_t> symbols(kNumClasses * kRangeTotal);
    for (int k = 0; k < kNumClasses; ++k) {
      uint16_t frequencies[kFineLimit + 1];
      std::memcpy(frequencies, &plane[layout.frequencies + k * layout.table_bytes],
                  layout.table_bytes);
      if (!tables[k].Set(frequencies, limit)) return false;
      tables[k].FillSymbols(&symbols[k * kRangeTotal]);
    }
    RangeDecoder decoder(plane.subspan(layout.stream));
    for (size_t i = 0; i < codes.size(); i += head_dim) {
      for (int c = 0; c < head_dim; ++c) {
        const int k = class_of[c];
        const uint8_t symbol = symbols[k * kRangeTotal + decoder.slot()];
        if (!decoder.Take(tables[k].range(symbol))) return false;
        codes[i + c] = static_cast<int8_t>(CodeOf(symbol));
      }
    }
    return decoder.AtEnd();
  }

  static bool RestoreTokens(const PageShape& shape, std::span<const std::byte> plane,
                            const Layout& layout, const std::vector<int8_t>& codes,
                            const MutablePageTiles& tiles) {
    const std::byte* anchors = &plane[1];
    const std::byte* scales = plane.data() + layout.scales;
    const int8_t* next = codes.data();
    float anchor[kMaxHeadDim];
    Bf16 x[kMaxHeadDim], scale;
    int8_t code[kMaxHeadDim];
    for (int t = 0; t < shape.num_tokens; ++t) {
      if (t % kChunk == 0) {
        std::memcpy(&scale, anchors, sizeof(scale));
        std::memcpy(code, anchors + sizeof(scale), shape.head_dim);
        anchors += layout.anchor_bytes;
        if (!IsScale(scale)) return false;
        RestoreVector(nullptr, code, ToFloat(scale), shape.head_dim, x);
        ToFloats(x, shape.head_dim, anchor);
      } else {
        std::memcpy(&scale, scales, sizeof(scale));
        scales += sizeof(scale);
        if (!IsScale(scale)) return false;
        RestoreVector(anchor, next, ToFloat(scale), shape.head_dim, x);
        next += shape.head_dim;
      }
      WriteToken(shape, tiles, t, x);
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<Codec> MakeCachegenCodec() { return std::make_unique<CachegenCodec>(); }

}  // namespace lynx
