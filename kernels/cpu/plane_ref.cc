// SPDX-License-Identifier: Apache-2.0
// The meaning of the plane format's block kernels, one element at a time.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/plane_block.h"
#include "lynx/plane_format.h"

namespace lynx::cpu {
namespace {

constexpr int kLanes = 16;

// Channel and token of tile element e.
struct Element {
  int channel;
  int token;
};
Element Locate(KvKind kind, int head_dim, int e) {
  if (kind == KvKind::kKey) return {e / kBlockSize, e % kBlockSize};
  return {e % head_dim, e / head_dim};
}

void KeyRange(KvKind kind, int head_dim, const Bf16* tile, int16_t* min_key, int16_t* max_key) {
  std::fill_n(min_key, head_dim, INT16_MAX);
  std::fill_n(max_key, head_dim, INT16_MIN);
  for (int e = 0; e < kBlockSize * head_dim; ++e) {
    const int c = Locate(kind, head_dim, e).channel;
    const int16_t key = OrderedKey(tile[e]);
    min_key[c] = std::min(min_key[c], key);
    max_key[c] = std::max(max_key[c], key);
  }
}

void PageRanges(const PageRangesParams& p) {
  for (int c = 0; c < p.head_dim; ++c) {
    int16_t min_key = INT16_MAX, max_key = INT16_MIN;
    for (int i = 0; i < p.num_blocks; ++i) {
      if (IsRawGroup(p.min_key[i][c], p.max_key[i][c])) continue;
      min_key = std::min(min_key, p.min_key[i][c]);
      max_key = std::max(max_key, p.max_key[i][c]);
    }
    const ChannelRange r = min_key > max_key ? ChannelRange{} : CoverKeys(min_key, max_key);
    p.lo[c] = r.lo;
    p.range[c] = r.range;
    p.page_lo[c] = HalfToFloat(r.lo);
    p.unit[c] = GroupUnit(r.range);
  }
}

void CodeGroups(const GroupCodesParams& p) {
  for (int c = 0; c < p.head_dim; ++c) {
    const GroupCodes codes = CodesOfGroup(p.min_key[c], p.max_key[c], p.page_lo[c], p.unit[c]);
    p.low[c] = static_cast<uint8_t>(codes.low);
    p.high[c] = static_cast<uint8_t>(codes.high);
  }
}

void GroupBounds(int head_dim, const float* page_lo, const float* unit, const uint8_t* low,
                 const uint8_t* high, float* lo, float* step) {
  for (int c = 0; c < head_dim; ++c) {
    lo[c] = GroupLow(low[c], unit[c], page_lo[c]);
    step[c] = GroupStep(low[c], high[c], unit[c]);
  }
}

uint32_t LoadDword(const std::byte* row, int lane) {
  uint32_t v;
  std::memcpy(&v, row + lane * sizeof(v), sizeof(v));
  return v;
}
void OrDword(std::byte* row, int lane, uint32_t bits) {
  const uint32_t v = LoadDword(row, lane) | bits;
  std::memcpy(row + lane * sizeof(v), &v, sizeof(v));
}

// Where the code bits of element e lie in each plane.
struct CodePlace {
  int lane, chunk, f;
  explicit CodePlace(int e) : lane(e % kLanes), chunk(e / 256), f(e / kLanes % kLanes) {}
  size_t row(int plane) const {
    constexpr size_t kRowBytes = kLanes * sizeof(uint32_t);
    const int rows[4] = {chunk, chunk / 2, chunk / 2, chunk * 2 + f % 2};
    return rows[plane] * kRowBytes;
  }
  int shift(int plane) const {
    const int shifts[4] = {2 * f, 2 * f + chunk % 2, 2 * f + chunk % 2, f / 2 * 4};
    return shifts[plane];
  }
};
constexpr int kCodeShift[4] = {6, 5, 4, 0};
constexpr uint32_t kCodeMask[4] = {3, 1, 1, 15};

struct BitWriter {
  std::byte* out;
  uint64_t pending = 0;
  int num_pending = 0;
  size_t size = 0;
  void Append(uint32_t value, int bits) {
    pending |= uint64_t{value} << num_pending;
    num_pending += bits;
    if (num_pending >= 32) Flush();
  }
  void Flush() {
    const auto word = static_cast<uint32_t>(pending);
    std::memcpy(out + size, &word, sizeof(word));
    size += sizeof(word);
    pending >>= 32;
    num_pending -= 32;
  }
};

StreamWords Encode(const EncodeBlockParams& p) {
  const int num_elements = kBlockSize * p.head_dim;
  for (int plane = 0; plane < 4; ++plane) {
    std::memset(p.rows[plane], 0, static_cast<size_t>(num_elements) * PlaneBits(plane) / 8);
  }
  std::byte extra_bytes[kBlockSize * kMaxHeadDim / 8];
  BitWriter stream{p.stream}, extra{extra_bytes};
  for (int e = 0; e < num_elements; ++e) {
    const auto [channel, token] = Locate(p.kind, p.head_dim, e);
    const float step = p.step[channel], lo = p.lo[channel];
    const int q = CellOf(BoundOperand(p.tile[e]), step, 1.0f / step, lo);
    const CodePlace place(e);
    for (int plane = 0; plane < 4; ++plane) {
      const uint32_t bits = (static_cast<uint32_t>(q) >> kCodeShift[plane]) & kCodeMask[plane];
      OrDword(p.rows[plane] + place.row(plane), place.lane, bits << place.shift(plane));
    }
    if (p.stream == nullptr || token < p.live_begin || token >= p.live_end) continue;
    const Cell cell = CellValues(q, step, lo);
    const auto index = static_cast<uint32_t>(OrderedKey(p.tile[e]) - cell.first);
    const IndexCode code = CodeOfIndex(index, cell.num_short());
    stream.Append(code.bits, cell.index_bits());
    if (code.has_extra) extra.Append(code.extra, 1);
  }
  if (p.stream == nullptr) return {};
  if (stream.num_pending > 0) stream.Flush();
  if (extra.num_pending > 0) extra.Flush();
  std::memcpy(p.stream + stream.size, extra_bytes, extra.size);
  return {static_cast<uint32_t>(stream.size / sizeof(uint32_t)),
          static_cast<uint32_t>(extra.size / sizeof(uint32_t))};
}

// Bits past the end read as 0.
struct BitReader {
  const std::byte* stream;
  size_t size;  // bytes
  size_t at = 0;
  uint32_t Read(int bits) {
    uint64_t window = 0;
    const size_t first = at / 8;
    if (first < size)
      std::memcpy(&window, stream + first, std::min(sizeof(uint32_t), size - first));
    const auto value = static_cast<uint32_t>(window >> (at % 8)) & ((1u << bits) - 1);
    at += bits;
    return value;
  }
  bool AtEnd() const { return (at + 31) / 32 * sizeof(uint32_t) == size; }
};

bool Decode(const DecodeBlockParams& p) {
  int num_bits = 0;
  for (int plane = 0; plane < 4 && p.rows[plane] != nullptr; ++plane) num_bits += PlaneBits(plane);
  const float centre = CodeCentre(num_bits);
  const size_t index_bytes = p.stream_words.index * sizeof(uint32_t);
  BitReader stream{p.stream, index_bytes};
  BitReader extra{p.stream + index_bytes, p.stream_words.extra * sizeof(uint32_t)};
  for (int e = 0; e < kBlockSize * p.head_dim; ++e) {
    const auto [channel, token] = Locate(p.kind, p.head_dim, e);
    const float step = p.step[channel], lo = p.lo[channel];
    const CodePlace place(e);
    uint32_t q = 0;
    for (int plane = 0; plane < 4 && p.rows[plane] != nullptr; ++plane) {
      const uint32_t row = LoadDword(p.rows[plane] + place.row(plane), place.lane);
      q |= ((row >> place.shift(plane)) & kCodeMask[plane]) << kCodeShift[plane];
    }
    if (p.stream == nullptr) {
      p.tile[e] = ToBf16(CellBound(static_cast<float>(q) + centre, step, lo));
      continue;
    }
    const Cell cell = CellValues(static_cast<int>(q), step, lo);
    const bool live = token >= p.live_begin && token < p.live_end;
    const uint32_t bits = stream.Read(live ? cell.index_bits() : 0);
    const bool has_extra = bits >= cell.num_short();
    const uint32_t index = IndexOfCode(bits, has_extra ? extra.Read(1) : 0, cell.num_short());
    p.tile[e] = FromOrderedKey(cell.first + static_cast<int32_t>(index));
  }
  return p.stream == nullptr || (stream.AtEnd() && extra.AtEnd());
}

}  // namespace

const PlaneBlockKernels kPlaneBlockRef = {KeyRange,    PageRanges, CodeGroups,
                                          GroupBounds, Encode,     Decode};

}  // namespace lynx::cpu
