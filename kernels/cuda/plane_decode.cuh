// SPDX-License-Identifier: Apache-2.0
// Planes into a page (docs/plane_format.md): the bits of kernels/cpu/plane_decode.cc, and its
// refusals.
//
// A CTA has a page. Every size is checked before anything that it bounds is read; then block by
// block a round of codes is put together in shared memory, by lane, and becomes values, by vector
// (plane_block.cuh). Reads each plane once and writes the page once: with all planes and on
// cache-like data 1.4 bytes in and 2 out per element.
#pragma once

#include <bit>

#include "kernels/cuda/plane_block.cuh"
#include "kernels/cuda/plane_decode.h"

namespace lynx::cuda {

struct PlaneDecodeArgs {
  Global<const PlaneDecodePage> pages;  // [gridDim.x]
  Global<uint8_t> ok;                   // [gridDim.x]
};

struct PlaneDecodeShared {
  Shared<float> page_lo;    // [kMaxHeadDim]
  Shared<float> unit;       // [kMaxHeadDim]
  GroupParams group;        // of the block at hand
  Shared<uint8_t> codes;    // [kRoundCodeBytes]
  Shared<int> warp_sums;    // [kPlaneWarps]
  Shared<uint32_t> failed;  // [1]
};

__device__ inline Global<const uint8_t> LowCodes(const PlaneLayout& layout,
                                                 Global<const std::byte> anchor, int block) {
  return Cast<const uint8_t>(anchor + layout.group_codes_offset() + block * layout.head_dim * 2);
}

// Page metadata and group codes of the thread's channel. False when a low or range is not finite, a
// range is negative, or a low code lies above its high one.
__device__ inline bool GetChannelRange(const PlaneLayout& layout, int channel,
                                       Global<const std::byte> anchor, const PlaneDecodeShared& s) {
  constexpr uint16_t kInfinity = 0x7c00, kMagnitude = 0x7fff;
  const Global<const uint16_t> metadata = Cast<const uint16_t>(anchor);
  const uint16_t lo = metadata[channel];
  const uint16_t range = metadata[layout.head_dim + channel];
  s.page_lo[channel] = HalfToFloat(lo);
  s.unit[channel] = GroupUnit(range);
  bool valid = (lo & kMagnitude) < kInfinity && range < kInfinity;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const Global<const uint8_t> codes = LowCodes(layout, anchor, i);
    const uint8_t low = codes[channel];
    const uint8_t high = codes[layout.head_dim + channel];
    valid = valid && (low <= high || (low == kRawLowCode && high == kRawHighCode));
  }
  return valid;
}

// The stream lengths of the exact plane fill it. One thread.
__device__ inline bool StreamsFill(const PlaneLayout& layout, Global<const std::byte> exact,
                                   uint32_t plane_bytes) {
  size_t end = layout.stream_offset() + PlaneLayout::kExactPadding;
  if (plane_bytes < end) return false;
  for (int i = 0; i < layout.num_blocks; ++i) {
    const uint32_t packed = Cast<const uint32_t>(exact)[i];
    const size_t bytes = StreamWords::FromPacked(packed).bytes();
    if (bytes > layout.max_stream_bytes()) return false;
    end += bytes;
  }
  return plane_bytes == end;
}

// Fills in s.page_lo and s.unit. The same for all threads of the CTA; barriers inside.
__device__ inline bool CheckPage(const PlaneDecodePage& page, const PlaneLayout& layout,
                                 const PlaneDecodeShared& s) {
  const Global<const std::byte> anchor = page.planes[0];
  if (page.plane_bytes[0] < layout.raw_offset()) return false;
  const auto thread = static_cast<int>(threadIdx.x);
  const bool has_channel = layout.num_blocks > 0 && thread < layout.head_dim;
  bool valid = true;
  if (has_channel) valid = GetChannelRange(layout, thread, anchor, s);
  size_t raw_bytes = 0;
  for (int i = 0; i < layout.num_blocks; ++i) {
    bool raw = false;
    if (has_channel) {
      const Global<const uint8_t> codes = LowCodes(layout, anchor, i);
      const uint8_t low = codes[thread];
      const uint8_t high = codes[layout.head_dim + thread];
      raw = low > high;
    }
    const int num_live = layout.block_live_end(i) - layout.block_live_begin(i);
    raw_bytes += size_t(SumOverThreads(raw, s.warp_sums).total) * num_live * sizeof(Bf16);
    __syncthreads();
  }
  valid = valid && page.plane_bytes[0] == layout.raw_offset() + raw_bytes;
  for (int p = 1; p < kExactPlane; ++p) {
    if (p < page.num_planes) valid = valid && page.plane_bytes[p] == layout.code_plane_bytes(p);
  }
  if (page.num_planes > kExactPlane && thread == 0) {
    valid = valid && (layout.num_blocks == 0 ? page.plane_bytes[kExactPlane] == 0
                                             : StreamsFill(layout, page.planes[kExactPlane],
                                                           page.plane_bytes[kExactPlane]));
  }
  if (!valid) atomicOr(s.failed, 1u);
  __syncthreads();
  const uint32_t failed = s.failed[0];
  return failed == 0;
}

// Group parameters of the thread's channel (if it has one); the number of raw groups.
__device__ inline int GetGroups(const PlaneLayout& layout, int block,
                                Global<const std::byte> anchor, const PlaneDecodeShared& s) {
  const int channel = static_cast<int>(threadIdx.x);
  const bool has_channel = channel < layout.head_dim;
  bool raw = false;
  if (has_channel) {
    const Global<const uint8_t> codes = LowCodes(layout, anchor, block);
    const uint8_t low = codes[channel];
    const uint8_t high = codes[layout.head_dim + channel];
    const float page_lo = s.page_lo[channel];
    const float unit = s.unit[channel];
    raw = low > high;
    s.group.lo[ParamSlot(channel)] = raw ? 0.0f : GroupLow(low, unit, page_lo);
    s.group.step[ParamSlot(channel)] = raw ? 0.0f : GroupStep(low, high, unit);
  }
  const PrefixSum rank = SumOverThreads(raw, s.warp_sums);
  if (has_channel) s.group.raw_rank[channel] = raw ? rank.before : -1;
  __syncthreads();
  return rank.total;
}

// By lane: the codes of a chunk's vectors, as far as the planes go, into shared memory.
__device__ inline void GetCodes(int chunk, int num_planes,
                                const Global<const std::byte> (&rows)[kExactPlane],
                                Shared<uint8_t> codes) {
  const int lane = static_cast<int>(threadIdx.x) % kChunkVectors;
  const auto row = [&](int plane, int index) -> uint32_t {
    return Cast<const uint32_t>(rows[plane])[index * kChunkVectors + lane];
  };
  const uint32_t anchor = row(0, chunk);
  const uint32_t bit3 = num_planes > 1 ? row(1, chunk / 2) >> chunk % 2 : 0;
  const uint32_t bit4 = num_planes > 2 ? row(2, chunk / 2) >> chunk % 2 : 0;
  uint32_t residual[2] = {0, 0};
  if (num_planes > 3) {
    residual[0] = row(3, chunk * 2);
    residual[1] = row(3, chunk * 2 + 1);
  }
  const Shared<uint8_t> out =
      codes + static_cast<int>(threadIdx.x) / kChunkVectors * kChunkCodeBytes + lane;
#pragma unroll
  for (int f = 0; f < kChunkVectors; ++f) {
    const uint32_t q = (anchor >> 2 * f & 3) << 6 | (bit3 >> 2 * f & 1) << 5 |
                       (bit4 >> 2 * f & 1) << 4 | (residual[f % 2] >> f / 2 * 4 & 15);
    out[f * kVectorElements] = static_cast<uint8_t>(q);
  }
}

// The codes of a vector.
struct VectorCodes {
  uint32_t words[kVectorElements / 4];
  __device__ int operator[](int i) const {
    return static_cast<int>(words[i / 4] >> i % 4 * 8 & 0xff);
  }
};
__device__ inline VectorCodes LoadCodes(Shared<uint8_t> codes, int vector) {
  const uint4 words = CodesOfVector(codes, vector)[0];
  return {{words.x, words.y, words.z, words.w}};
}

// Stores the live elements of a vector.
__device__ inline void StoreVector(const PlaneTile& tile, const VectorPlace& place, int vector,
                                   const uint32_t (&bits)[kVectorElements], Global<Bf16> elements) {
  if (place.AllLive(tile)) {
    uint32_t words[kVectorElements / 2];
#pragma unroll
    for (int w = 0; w < kVectorElements / 2; ++w) words[w] = bits[2 * w] | bits[2 * w + 1] << 16;
    const Global<uint4> out = Cast<uint4>(elements) + vector * 2;
    out[0] = uint4{words[0], words[1], words[2], words[3]};
    out[1] = uint4{words[4], words[5], words[6], words[7]};
    return;
  }
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    const int token = place.token + i * place.token_step;
    if (!tile.live(token)) continue;
    elements[tile.Index(place.channel + i * place.channel_step, token)] =
        Bf16{static_cast<uint16_t>(bits[i])};
  }
}

// By vector: codes of num_bits known bits become the centres of their cells.
__device__ inline void StoreCentres(const PlaneTile& tile, int vector, float centre,
                                    const PlaneDecodeShared& s, Global<Bf16> elements) {
  const VectorPlace place(tile, vector);
  const VectorCodes codes = LoadCodes(s.codes, vector);
  uint32_t bits[kVectorElements];
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    const int slot = ParamSlot(place.channel) + i * place.channel_step;
    const float step = s.group.step[slot];
    const float lo = s.group.lo[slot];
    bits[i] = ToBf16(CellBound(static_cast<float>(codes[i]) + centre, step, lo)).bits;
  }
  StoreVector(tile, place, vector, bits, elements);
}

// The words of one of a block's streams; what lies past the end reads as 0.
struct ExactStream {
  Global<const uint32_t> words;
  int num_words = 0;
};

// Reads a stream from one of its bits on.
class BitReader {
 public:
  __device__ BitReader(const ExactStream& stream, int at) : stream_(stream), next_(at / 32) {
    Fill();
    Read(at % 32);
  }
  // num_bits <= 32.
  __device__ uint32_t Read(int num_bits) {
    if (num_filled_ < num_bits) Fill();
    const uint64_t bits = window_ & ((uint64_t{1} << num_bits) - 1);
    window_ >>= num_bits;
    num_filled_ -= num_bits;
    return static_cast<uint32_t>(bits);
  }

 private:
  __device__ void Fill() {
    uint32_t word = 0;
    if (next_ < stream_.num_words) word = stream_.words[next_];
    ++next_;
    window_ |= uint64_t{word} << num_filled_;
    num_filled_ += 32;
  }
  ExactStream stream_;
  int next_;
  uint64_t window_ = 0;
  int num_filled_ = 0;
};

// A cell in one register: its first key, and one less than its count above. All zero: no bits.
class PackedCell {
 public:
  PackedCell() = default;
  __device__ explicit PackedCell(const Cell& cell)
      : bits_((static_cast<uint32_t>(cell.first) & 0xffff) | static_cast<uint32_t>(cell.count - 1)
                                                                 << 16) {}
  __device__ Cell cell() const {
    return {static_cast<int32_t>(bits_ & 0xffff), static_cast<int>(bits_ >> 16) + 1};
  }

 private:
  uint32_t bits_ = 0;
};

// The keys of a vector, but for the extra bits that are to be added to some.
struct VectorKeys {
  uint32_t words[kVectorElements / 2] = {};
  uint32_t has_extra = 0;  // a bit for each element
  // index_bits: of element i.
  __device__ void Put(int i, const Cell& cell, uint32_t index_bits) {
    const bool more = index_bits >= cell.num_short();
    const uint32_t key =
        static_cast<uint32_t>(cell.first) + IndexOfCode(index_bits, 0, cell.num_short());
    words[i / 2] |= (key & 0xffff) << i % 2 * 16;
    has_extra |= static_cast<uint32_t>(more) << i;
  }
  // Takes the extra bit of element i from the lowest of `extra`.
  __device__ Bf16 Take(int i, uint32_t& extra) const {
    const uint32_t more = has_extra >> i & 1;
    const uint32_t key = (words[i / 2] >> i % 2 * 16 & 0xffff) + (extra & more);
    extra >>= more;
    return FromOrderedKey(static_cast<int32_t>(key));
  }
};

// The streams of a block, the extra bits behind the index bits, and how many bits of each the
// rounds have taken.
struct ExactStreams {
  Global<const uint32_t> words;
  uint32_t packed_sizes = 0;
  int num_index_bits = 0;
  int num_extra_bits = 0;
  __device__ StreamWords sizes() const { return StreamWords::FromPacked(packed_sizes); }
  __device__ ExactStream index() const {
    return {.words = words, .num_words = static_cast<int>(sizes().index)};
  }
  __device__ ExactStream extra() const {
    return {.words = words + sizes().index, .num_words = static_cast<int>(sizes().extra)};
  }
  __device__ bool AtEnd() const {
    return (num_index_bits + 31) / 32 == static_cast<int>(sizes().index) &&
           (num_extra_bits + 31) / 32 == static_cast<int>(sizes().extra);
  }
};

// By vector, all threads of the CTA: exact values. Barriers inside.
__device__ inline void StoreExact(const PlaneTile& tile, int vector, ExactStreams& streams,
                                  const PlaneDecodeShared& s, Global<Bf16> elements) {
  const bool active = vector < tile.num_vectors();
  const VectorPlace place(tile, active ? vector : 0);
  PackedCell cells[kVectorElements] = {};
  int num_bits = 0;
  if (active) {
    const VectorCodes codes = LoadCodes(s.codes, vector);
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      const int slot = ParamSlot(place.channel) + i * place.channel_step;
      const float step = s.group.step[slot];
      const float lo = s.group.lo[slot];
      if (!tile.live(place.token + i * place.token_step)) continue;
      cells[i] = PackedCell(CellValues(codes[i], step, lo));
      num_bits += cells[i].cell().index_bits();
    }
  }
  const PrefixSum sum = SumOverThreads(num_bits, s.warp_sums);
  BitReader index(streams.index(), streams.num_index_bits + sum.before);
  streams.num_index_bits += sum.total;
  VectorKeys keys;
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) {
    const Cell cell = cells[i].cell();
    keys.Put(i, cell, index.Read(cell.index_bits()));
  }
  const int num_extra = std::popcount(keys.has_extra);
  __syncthreads();
  const PrefixSum extra_sum = SumOverThreads(num_extra, s.warp_sums);
  BitReader reader(streams.extra(), streams.num_extra_bits + extra_sum.before);
  streams.num_extra_bits += extra_sum.total;
  if (!active) return;
  uint32_t extra = reader.Read(num_extra);
  uint32_t bits[kVectorElements];
#pragma unroll
  for (int i = 0; i < kVectorElements; ++i) bits[i] = keys.Take(i, extra).bits;
  StoreVector(tile, place, vector, bits, elements);
}

// The element of a page's tiles that belongs to a token and channel.
__device__ inline Global<Bf16> ElementOf(const PlaneDecodePage& page, int token, int channel) {
  const int slot = token % kBlockSize;
  const bool key = page.shape.kind == KvKind::kKey;
  const Global<Bf16> tile = SelectTile(page.tiles, token / kBlockSize);
  return tile + (key ? channel * kBlockSize + slot : slot * page.shape.head_dim + channel);
}

// Block i of a page whose sizes were checked; stream_word: where its stream begins in the exact
// plane, moved on to the next one's.
__device__ inline void DecodeBlock(const PlaneDecodePage& page, const PlaneLayout& layout, int i,
                                   const PlaneDecodeShared& s, int& stream_word) {
  const PlaneTile tile(page.shape.kind, layout, i);
  const Global<Bf16> elements = SelectTile(page.tiles, layout.first_block + i);
  Global<const std::byte> rows[kExactPlane];
  rows[0] = Global<const std::byte>(page.planes[0]) + layout.codes_offset() +
            i * layout.block_code_bytes(0);
  for (int p = 1; p < kExactPlane; ++p) {
    if (p < page.num_planes) {
      rows[p] = Global<const std::byte>(page.planes[p]) + i * layout.block_code_bytes(p);
    }
  }
  const bool exact = page.num_planes > kExactPlane;
  ExactStreams streams;
  if (exact) {
    const Global<const uint32_t> words =
        Cast<const uint32_t>(Global<const std::byte>(page.planes[kExactPlane]));
    const uint32_t packed = words[i];
    streams = {.words = words + stream_word, .packed_sizes = packed};
    stream_word += static_cast<int>(streams.sizes().index + streams.sizes().extra);
  }
  int num_code_bits = 0;
  for (int p = 0; p < kExactPlane; ++p) num_code_bits += p < page.num_planes ? PlaneBits(p) : 0;
  const float centre = CodeCentre(num_code_bits);
  for (int begin = 0; begin < tile.num_vectors(); begin += kPlaneThreads) {
    const int vector = begin + static_cast<int>(threadIdx.x);
    if (vector < tile.num_vectors()) {
      GetCodes(vector / kChunkVectors, page.num_planes, rows, s.codes);
    }
    __syncthreads();
    if (exact) {
      StoreExact(tile, vector, streams, s, elements);
    } else if (vector < tile.num_vectors()) {
      StoreCentres(tile, vector, centre, s, elements);
    }
    __syncthreads();
  }
  if (exact && threadIdx.x == 0 && !streams.AtEnd()) atomicOr(s.failed, 1u);
}

// A page whose sizes were checked. Its description is loaded anew for every block: to keep it would
// take 30 registers.
__device__ inline void DecodePage(Global<const PlaneDecodePage> description,
                                  const PlaneLayout& layout, const PlaneDecodeShared& s) {
  int num_raw = 0;
  int stream_word = layout.num_blocks;  // the lengths come first
  for (int i = 0; i < layout.num_blocks; ++i) {
    const PlaneDecodePage page = description[0];
    const Global<const std::byte> anchor = page.planes[0];
    const int num_raw_groups = GetGroups(layout, i, anchor, s);
    DecodeBlock(page, layout, i, s, stream_word);
    const PlaneTile tile(page.shape.kind, layout, i);
    const Global<Bf16> elements = SelectTile(page.tiles, layout.first_block + i);
    const Global<const Bf16> raw = Cast<const Bf16>(anchor + layout.raw_offset()) + num_raw;
    ForEachRawElement(tile, s.group.raw_rank, [&](int element, int from) {
      const Bf16 value = raw[from];
      elements[element] = value;
    });
    num_raw += num_raw_groups * tile.num_live();
    __syncthreads();
  }
  const PlaneDecodePage page = description[0];
  const Global<const Bf16> protected_elements =
      Cast<const Bf16>(Global<const std::byte>(page.planes[0]) + layout.protected_offset());
  ForEachProtectedElement(layout, [&](int token, int channel, int from) {
    const Bf16 value = protected_elements[from];
    ElementOf(page, token, channel)[0] = value;
  });
}

// budget: PlaneDecodeKernel registers 80 shared 10240 threads 256
__global__ void __launch_bounds__(kPlaneThreads, 3) PlaneDecodeKernel(PlaneDecodeArgs args) {
  LYNX_SHARED(float, page_lo, kMaxHeadDim);
  LYNX_SHARED(float, unit, kMaxHeadDim);
  LYNX_SHARED(float, group_lo, kParamSlots);
  LYNX_SHARED(float, group_step, kParamSlots);
  LYNX_SHARED(int, raw_rank, kMaxHeadDim);
  LYNX_SHARED(uint8_t, codes, kRoundCodeBytes);
  LYNX_SHARED(int, warp_sums, kPlaneWarps);
  LYNX_SHARED(uint32_t, failed, 1);
  const PlaneDecodeShared s = {.page_lo = page_lo,
                               .unit = unit,
                               .group = {.lo = group_lo, .step = group_step, .raw_rank = raw_rank},
                               .codes = codes,
                               .warp_sums = warp_sums,
                               .failed = failed};
  const auto thread = static_cast<int>(threadIdx.x);
  const Global<const PlaneDecodePage> description = args.pages + blockIdx.x;
  const PlaneDecodePage page = description[0];
  const PlaneLayout layout(page.shape);
  if (thread == 0) failed[0] = 0;
  __syncthreads();

  bool ok = CheckPage(page, layout, s);
  if (ok) {
    DecodePage(description, layout, s);
    __syncthreads();
    const uint32_t damaged = failed[0];
    ok = damaged == 0;
  }
  if (!ok) {
    const int count = page.shape.num_tokens * layout.head_dim;
    for (int i = thread; i < count; i += kPlaneThreads) {
      ElementOf(page, i / layout.head_dim, i % layout.head_dim)[0] = Bf16{};
    }
  }
  if (thread == 0) args.ok[blockIdx.x] = ok ? 1 : 0;
}

}  // namespace lynx::cuda
