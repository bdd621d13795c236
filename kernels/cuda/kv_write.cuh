// SPDX-License-Identifier: Apache-2.0
// K and V of the batch's rows into their slots, rounded to BF16 as kernels/cpu/kv_write.h does.
//
// A block takes 32 rows, 32 channels of one KV head, and one kind. Values go straight on: a warp
// writes 32 channels of one row. Keys are turned in shared memory: a warp writes one channel of 32
// rows, which are neighbours when the rows of a prompt are. Moves 6 bytes per element (a lone
// decode row's keys touch a sector of 32 bytes each).
#pragma once

#include "kernels/cuda/device.cuh"
#include "lynx/kv_layout.h"

namespace lynx::cuda {

struct KvWriteArgs {
  Global<const float> source[2];  // K, V: [rows, num_kv_heads, head_dim]
  Global<const int32_t> slots;    // [rows], block · 64 + place in the block
  int rows = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  Global<Bf16> pool;               // the first block's
  int64_t block_stride = 0;        // elements
  int64_t tile_begin[2] = {0, 0};  // of K and V of head 0 in a block, elements
};

inline constexpr int kKvWriteTile = 32;  // rows and channels of a block
inline constexpr int kKvWriteWarps = 8;

// What is stored is finite: NaN becomes 0, infinity the largest number.
__device__ inline Bf16 RoundToCache(float x) {
  constexpr float kLargest = 0x1.fep127f;
  if (x != x) return Bf16{};
  return ToBf16(x < -kLargest ? -kLargest : x > kLargest ? kLargest : x);
}

// The head's tile that holds slots[row].
__device__ inline Global<Bf16> TileOf(const KvWriteArgs& args, int kind, int head, int32_t slot) {
  return args.pool + (slot / kBlockSize) * args.block_stride + args.tile_begin[kind] +
         int64_t{head} * kBlockSize * args.head_dim;
}

// budget: KvWriteKernel registers 40 shared 2176 threads 256
__global__ void __launch_bounds__(kKvWriteWarps* kWarpSize) KvWriteKernel(KvWriteArgs args) {
  LYNX_SHARED(uint16_t, turned, kKvWriteTile * (kKvWriteTile + 2));
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int kind = static_cast<int>(blockIdx.z) % 2, head = static_cast<int>(blockIdx.z) / 2;
  const int first_row = static_cast<int>(blockIdx.x) * kKvWriteTile;
  const int first_channel = static_cast<int>(blockIdx.y) * kKvWriteTile;
  const int channel = first_channel + lane;

  for (int r = warp; r < kKvWriteTile; r += kKvWriteWarps) {
    const int row = first_row + r;
    if (row >= args.rows || channel >= args.head_dim) continue;
    const int64_t at = (int64_t{row} * args.num_kv_heads + head) * args.head_dim + channel;
    const float x = kind == 0 ? args.source[0][at] : args.source[1][at];
    const Bf16 value = RoundToCache(x);
    if (kind == 0) {
      turned[r * (kKvWriteTile + 2) + lane] = value.bits;
    } else {
      const int32_t slot = args.slots[row];
      TileOf(args, 1, head, slot)[int64_t{slot % kBlockSize} * args.head_dim + channel] = value;
    }
  }
  __syncthreads();
  const int row = first_row + lane;
  if (kind == 1 || row >= args.rows) return;
  const int32_t slot = args.slots[row];
  const Global<Bf16> tile = TileOf(args, 0, head, slot);
  for (int c = warp; c < kKvWriteTile; c += kKvWriteWarps) {
    if (first_channel + c >= args.head_dim) return;
    const uint16_t bits = turned[lane * (kKvWriteTile + 2) + c];
    tile[int64_t{first_channel + c} * kBlockSize + slot % kBlockSize] = Bf16{bits};
  }
}

}  // namespace lynx::cuda
