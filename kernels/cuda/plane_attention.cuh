// SPDX-License-Identifier: Apache-2.0
// attention.cuh with tiles made from planes. A block's metadata and code rows are copied as they
// are; when they have landed, a thread turns the codes of two lanes of a chunk, 32 elements, into
// BF16 and stores neighbours in pairs: some 6 instructions per element.
//
// Moves (bits / 8 + 0.05) · head_dim bytes per token, KV head and kind, bits being 2, 3, 4 or 8.
#pragma once

#include "kernels/common/half.h"
#include "kernels/common/plane_math.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/plane_attention.h"

namespace lynx::cuda {

struct PlaneAttentionArgs {
  AttentionArgs attention;
  Global<const PlaneBlocks> blocks;
  Global<const PlanePage> pages;
};

// Buffers behind those of AttentionShape: per kind a block's metadata and codes as they lie in the
// planes, and the bounds of the groups at hand. Offsets in bytes per channel.
inline constexpr int kGroupCodesAt = 4;  // after page_lo and range
constexpr int CodesAt(int plane) { return plane == 0 ? 6 : 14 + 8 * plane; }
inline constexpr int kStagingBytes = 70;

template <typename Shape>
inline constexpr int kPlaneSharedBytes = Shape::kSharedBytes +
                                         Shape::kHeadDim*(2 * kStagingBytes +
                                                          2 * int{sizeof(float)});

// The 16 codes of a lane of a chunk: that of vector 4j + 2h + o is byte j of bytes[o][h].
struct LaneCodes {
  uint32_t bytes[2][2];
  // Words of the lane in the rows of the four planes; absent planes are 0. parity: the chunk's in
  // its pair.
  __device__ LaneCodes(uint32_t two_bits, uint32_t bit5, uint32_t bit4, const uint32_t (&low)[2],
                       int parity) {
    const uint32_t next_bits = (bit5 >> parity & 0x55555555u) << 1 | (bit4 >> parity & 0x55555555u);
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      // Nibble i: bits 7 .. 4 of vector 2i + o.
      const uint32_t high =
          (two_bits >> 2 * o & 0x33333333u) << 2 | (next_bits >> 2 * o & 0x33333333u);
      bytes[o][0] = (high & 0x0f0f0f0fu) << 4 | (low[o] & 0x0f0f0f0fu);
      bytes[o][1] = (high & 0xf0f0f0f0u) | (low[o] >> 4 & 0x0f0f0f0fu);
    }
  }
  // code + centre as a float, exactly.
  __device__ float code(int j, int h, int o, float centre) const {
    constexpr float kBias = 8388608.0f;  // 2^23: a code is its last bits
    const uint32_t code = bytes[o][h] >> 8 * j & 0xffu;
    return std::bit_cast<float>(0x4b000000u | code) - (kBias - centre);
  }
};

template <typename Shape>
struct PlaneTiles {
  static constexpr int kHeadDim = Shape::kHeadDim;

  const PlaneAttentionArgs& args;
  const AttentionTask& task;
  AttentionShared<Shape> shared;
  Shared<std::byte> staging;  // [2][kStagingBytes · kHeadDim]
  Shared<float> bounds;       // [2][kHeadDim]: lo, step
  PlaneBlocks blocks;

  __device__ PlaneTiles(const PlaneAttentionArgs& args, const AttentionTask& task,
                        Shared<std::byte> base)
      : args(args),
        task(task),
        shared(base),
        staging(base + Shape::kSharedBytes),
        bounds(Cast<float>(base + (Shape::kSharedBytes + 2 * kStagingBytes * kHeadDim))),
        blocks(args.blocks[task.unit.group]) {}

  // A block that lies in planes.
  struct Source {
    PlanePage page;
    PlaneLayout layout;
    int first_token;  // of the block, in its page
    int live_block;   // among the page's live blocks; outside [0, num_blocks) if it is none

    __device__ bool is_live() const { return live_block >= 0 && live_block < layout.num_blocks; }
    __device__ Global<const std::byte> plane(int p) const {
      const std::byte* raw = page.planes[p];
      return raw;
    }
    // Protected token t of the page, in planes' order, or -1: live, or no token.
    __device__ int protected_row(int t) const {
      if (t >= page.num_tokens || (t >= layout.live_begin && t < layout.live_end)) return -1;
      return t < layout.live_begin ? t : layout.live_begin + t - layout.live_end;
    }
  };
  __device__ bool InPlanes(int block) const { return block >= blocks.begin && block < blocks.end; }
  __device__ Source SourceOf(KvKind kind, int block) const {
    const int i = block - blocks.begin;
    const int64_t index = (int64_t{blocks.first_page + i / kPageBlocks} * 2 + int(kind)) *
                              args.attention.num_kv_heads +
                          task.kv_head;
    const PlanePage page = args.pages[index];
    const PlaneLayout layout(PageShape{.kind = kind,
                                       .head_dim = kHeadDim,
                                       .num_tokens = page.num_tokens,
                                       .num_protected_head = page.num_protected_head,
                                       .num_protected_tail = page.num_protected_tail});
    return {page, layout, i % kPageBlocks * kBlockSize, i % kPageBlocks - layout.first_block};
  }
  __device__ Shared<std::byte> StagingOf(KvKind kind) const {
    return staging + int(kind) * kStagingBytes * kHeadDim;
  }
  __device__ void Copy(Shared<std::byte> to, Global<const std::byte> from, int bytes) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < bytes / 16; i += Shape::kThreads) {
      CopyAsync16(to + i * 16, from + i * 16);
    }
  }

  // As PoolTiles.
  __device__ void Start(KvKind kind, int block) const {
    if (!InPlanes(block)) {
      PoolTiles<Shape>{args.attention, task, shared}.Start(kind, block);
      return;
    }
    const Source source = SourceOf(kind, block);
    if (!source.is_live()) return;
    const int i = source.live_block;
    const auto to = StagingOf(kind);
    Copy(to, source.plane(0), kGroupCodesAt * kHeadDim);
    Copy(to + kGroupCodesAt * kHeadDim, source.plane(0) + (kGroupCodesAt + 2 * i) * kHeadDim,
         2 * kHeadDim);
#pragma unroll
    for (int p = 0; p < kExactPlane; ++p) {
      if (p >= source.page.num_planes) break;
      const int64_t bytes = source.layout.block_code_bytes(p);
      const int64_t begin = (p == 0 ? source.layout.codes_offset() : 0) + i * bytes;
      Copy(to + CodesAt(p) * kHeadDim, source.plane(p) + begin, static_cast<int>(bytes));
    }
  }

  __device__ void Finish(KvKind kind, int block) const {
    if (!InPlanes(block)) return;
    const Source source = SourceOf(kind, block);
    if (source.is_live()) {
      ComputeBounds(StagingOf(kind));
      __syncthreads();
      const int num_planes = source.page.num_planes;
      if (kind == KvKind::kKey) {
        Unpack<KvKind::kKey>(num_planes);
      } else {
        Unpack<KvKind::kValue>(num_planes);
      }
      __syncthreads();
    }
    if (source.is_live()) StoreRawGroups(kind, source);
    StoreProtected(kind, source);
    __syncthreads();
  }

  __device__ bool IsRaw(Shared<const std::byte> meta, int channel) const {
    const auto codes = Cast<const uint8_t>(meta + kGroupCodesAt * kHeadDim);
    const uint8_t low = codes[channel], high = codes[kHeadDim + channel];
    return low == kRawLowCode && high == kRawHighCode;
  }
  __device__ void ComputeBounds(Shared<const std::byte> meta) const {
    const auto halves = Cast<const uint16_t>(meta);
    const auto codes = Cast<const uint8_t>(meta + kGroupCodesAt * kHeadDim);
    for (int c = threadIdx.x; c < kHeadDim; c += Shape::kThreads) {
      const uint16_t page_lo = halves[c], range = halves[kHeadDim + c];
      const uint8_t low = codes[c], high = codes[kHeadDim + c];
      const float unit = GroupUnit(range);
      const bool is_raw = low > high;
      bounds[c] = is_raw ? 0.0f : GroupLow(low, unit, HalfToFloat(page_lo));
      bounds[kHeadDim + c] = is_raw ? 0.0f : GroupStep(low, high, unit);
    }
  }

  __device__ LaneCodes CodesOf(Shared<const std::byte> staged, int num_planes, int chunk,
                               int lane) const {
    const auto word = [&](int plane, int row) -> uint32_t {
      return Cast<const uint32_t>(staged + CodesAt(plane) * kHeadDim)[row * kLanes + lane];
    };
    uint32_t bit5 = 0, bit4 = 0, low[2] = {};
    if (num_planes > 1) bit5 = word(1, chunk / 2);
    if (num_planes > 2) bit4 = word(2, chunk / 2);
    if (num_planes > 3) {
      low[0] = word(3, 2 * chunk);
      low[1] = word(3, 2 * chunk + 1);
    }
    return LaneCodes(word(0, chunk), bit5, bit4, low, chunk % 2);
  }

  // Writes every slot of the tile; the codes of slots that are not live are overwritten later.
  template <KvKind kKind>
  __device__ void Unpack(int num_planes) const {
    const auto staged = StagingOf(kKind);
    const float centre = num_planes > 3 ? CodeCentre(8) : CodeCentre(1 + num_planes);
    for (int item = threadIdx.x; item < kHeadDim / 4 * (kLanes / 2); item += Shape::kThreads) {
      const int chunk = item / (kLanes / 2), lane = item % (kLanes / 2) * 2;
      const LaneCodes first = CodesOf(staged, num_planes, chunk, lane);
      const LaneCodes second = CodesOf(staged, num_planes, chunk, lane + 1);
#pragma unroll
      for (int f = 0; f < 16; ++f) {
        const int j = f / 4, h = f / 2 % 2, o = f % 2;
        const int element = (chunk * 16 + f) * kLanes + lane;
        const bool is_key = kKind == KvKind::kKey;
        const int channel = is_key ? element / kBlockSize : element % kHeadDim;
        const int token = is_key ? element % kBlockSize : element / kHeadDim;
        const int next_channel = is_key ? channel : channel + 1;
        const float lo = bounds[channel], step = bounds[kHeadDim + channel];
        const float next_lo = bounds[next_channel], next_step = bounds[kHeadDim + next_channel];
        const uint32_t word =
            RoundToBf16(CellBound(first.code(j, h, o, centre), step, lo),
                        CellBound(second.code(j, h, o, centre), next_step, next_lo));
        Cast<uint32_t>(Slot(kKind, channel, token))[0] = word;
      }
    }
  }

  __device__ Shared<Bf16> Slot(KvKind kind, int channel, int token) const {
    return kind == KvKind::kKey ? shared.key + (channel * Shape::kKeyStride + token)
                                : shared.value + (token * Shape::kValueStride + channel);
  }

  // Raw groups are rare: each of their channels counts those before it.
  __device__ void StoreRawGroups(KvKind kind, const Source& source) const {
    const PlaneLayout& layout = source.layout;
    const int i = source.live_block;
    for (int c = threadIdx.x; c < kHeadDim; c += Shape::kThreads) {
      if (!IsRaw(StagingOf(kind), c)) continue;
      const auto codes = Cast<const uint8_t>(source.plane(0) + kGroupCodesAt * kHeadDim);
      int64_t at = layout.raw_offset() / sizeof(Bf16);
      for (int group = 0; group < i * kHeadDim + c; ++group) {
        const int b = group / kHeadDim;
        const uint8_t low = codes[b * kHeadDim + group], high = codes[(b + 1) * kHeadDim + group];
        if (low != kRawLowCode || high != kRawHighCode) continue;
        at += layout.block_live_end(b) - layout.block_live_begin(b);
      }
      for (int t = layout.block_live_begin(i); t < layout.block_live_end(i); ++t, ++at) {
        Bf16 x;
        if ((at + 1) * int64_t{sizeof(Bf16)} <= source.page.plane0_bytes) {
          x = Cast<const Bf16>(source.plane(0))[at];
        }
        Slot(kind, c, t)[0] = x;
      }
    }
  }

  // Protected tokens, and zeros where there is no token.
  __device__ void StoreProtected(KvKind kind, const Source& source) const {
    const PlaneLayout& layout = source.layout;
    if (source.is_live() && layout.block_live_begin(source.live_block) == 0 &&
        layout.block_live_end(source.live_block) == kBlockSize) {
      return;
    }
    const auto rows = Cast<const Bf16>(source.plane(0) + layout.protected_offset());
    for (int e = threadIdx.x; e < kBlockSize * kHeadDim; e += Shape::kThreads) {
      const int channel = e % kHeadDim, token = e / kHeadDim;
      const int t = source.first_token + token;
      if (t >= layout.live_begin && t < layout.live_end) continue;
      const int row = source.protected_row(t);
      Bf16 x;
      if (row >= 0) x = rows[row * kHeadDim + channel];
      Slot(kind, channel, token)[0] = x;
    }
  }
};

// budget: PlaneAttentionKernel<64> registers 128 shared 32768 threads 128
// budget: PlaneAttentionKernel<96> registers 128 shared 47232 threads 128
// budget: PlaneAttentionKernel<128> registers 128 shared 61696 threads 128
// budget: PlaneAttentionKernel<256> registers 240 shared 119552 threads 128
template <int kHeadDim>
__global__ void __launch_bounds__(NarrowShape<kHeadDim>::kThreads,
                                  NarrowShape<kHeadDim>::kMinBlocks)
    PlaneAttentionKernel(PlaneAttentionArgs args) {
  using Shape = NarrowShape<kHeadDim>;
  LYNX_DYNAMIC_SHARED(base);
  const AttentionTask task(args.attention, Shape::kPairs);
  const PlaneTiles<Shape> tiles(args, task, base);
  AttendUnit<Shape>(args.attention, task, tiles.shared, tiles);
}

}  // namespace lynx::cuda
