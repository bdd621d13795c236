// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding table, decoded from the file's own format, element by element: the bits of
// kernels/cpu/dequantize.h, whose comments say what the formats are. One thread an element. Reads
// the row as it lies in the file and writes 4 bytes per element.
#pragma once

#include "kernels/common/half.h"
#include "kernels/common/iq4_value.h"
#include "kernels/cuda/device.cuh"
#include "lynx/backend.h"

namespace lynx::cuda {

struct EmbedArgs {
  WeightType type = WeightType::kF32;
  Global<const std::byte> table;  // rows of row_bytes
  int64_t row_bytes = 0;
  int block_elements = 1;
  int block_bytes = 4;
  int dim = 0;
  Global<const TokenId> ids;  // [gridDim.x]
  Global<float> out;          // [gridDim.x, dim]
};

inline constexpr int kEmbedThreads = 256;

using FileBlock = Global<const std::byte>;

__device__ inline int ByteAt(FileBlock block, int i) {
  const std::byte value = block[i];
  return static_cast<int>(value);
}
__device__ inline int SignedByteAt(FileBlock block, int i) {
  return static_cast<int8_t>(ByteAt(block, i));
}
__device__ inline float HalfAt(FileBlock block, int i) {
  return HalfToFloat(static_cast<uint16_t>(ByteAt(block, i) | ByteAt(block, i + 1) << 8));
}

// Element i of 32: byte i, or the high nibble of byte i - 16.
__device__ inline int NibbleAt(FileBlock codes, int i) {
  return (ByteAt(codes, i % 16) >> (i / 16 * 4)) & 15;
}
__device__ inline int FifthBitAt(FileBlock bits, int i) {
  return ((ByteAt(bits, i / 8) >> (i % 8)) & 1) << 4;
}

// Scale and minimum of group i of 8 of a K-quant block: six bits each.
struct GroupScale {
  float scale;
  float min;
};
__device__ inline GroupScale GroupScaleAt(FileBlock block, int i) {
  const FileBlock scales = block + 4;
  int scale, min;
  if (i < 4) {
    scale = ByteAt(scales, i) & 63;
    min = ByteAt(scales, i + 4) & 63;
  } else {
    const int nibbles = ByteAt(scales, i + 4);
    scale = (nibbles & 15) | (ByteAt(scales, i - 4) >> 6) << 4;
    min = (nibbles >> 4) | (ByteAt(scales, i) >> 6) << 4;
  }
  return {HalfAt(block, 0) * static_cast<float>(scale), HalfAt(block, 2) * static_cast<float>(min)};
}

__device__ inline float ElementQ4K(FileBlock block, int i) {
  const int group = i / 32;
  const GroupScale s = GroupScaleAt(block, group);
  const int code = (ByteAt(block, 16 + group / 2 * 32 + i % 32) >> (group % 2 * 4)) & 15;
  return s.scale * static_cast<float>(code) - s.min;
}
__device__ inline float ElementQ5K(FileBlock block, int i) {
  const int group = i / 32;
  const GroupScale s = GroupScaleAt(block, group);
  const int low = (ByteAt(block, 48 + group / 2 * 32 + i % 32) >> (group % 2 * 4)) & 15;
  const int fifth = ((ByteAt(block, 16 + i % 32) >> group) & 1) << 4;
  return s.scale * static_cast<float>(low + fifth) - s.min;
}
__device__ inline float ElementQ6K(FileBlock block, int i) {
  const int half = i / 128, group = i / 32 % 4, j = i % 32;
  const int low = ByteAt(block, half * 64 + group % 2 * 32 + j) >> (group / 2 * 4) & 15;
  const int high = (ByteAt(block, 128 + half * 32 + j) >> (group * 2)) & 3;
  const float scale = HalfAt(block, 208) * static_cast<float>(SignedByteAt(block, 192 + i / 16));
  return scale * static_cast<float>((low | high << 4) - 32);
}

__device__ inline float ElementQ2K(FileBlock block, int i) {
  const int scale_min = ByteAt(block, i / 16);
  const float scale = HalfAt(block, 80) * static_cast<float>(scale_min & 15);
  const float min = HalfAt(block, 82) * static_cast<float>(scale_min >> 4);
  const int code = (ByteAt(block, 16 + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2)) & 3;
  return scale * static_cast<float>(code) - min;
}
__device__ inline float ElementQ3K(FileBlock block, int i) {
  const int group = i / 16;
  const int scale_low = (ByteAt(block, 96 + group % 8) >> (group / 8 * 4)) & 15;
  const int scale_high = (ByteAt(block, 104 + group % 4) >> (group / 4 * 2)) & 3;
  const float scale = HalfAt(block, 108) * static_cast<float>((scale_low | scale_high << 4) - 32);
  const int low = (ByteAt(block, 32 + i / 128 * 32 + i % 32) >> (i / 32 % 4 * 2)) & 3;
  const int high = (ByteAt(block, i % 32) >> (i / 32)) & 1;
  return scale * static_cast<float>((low | high << 2) - 4);
}
__device__ inline float ElementIQ4XS(FileBlock block, int i) {
  const int group = i / 32;
  const int low = (ByteAt(block, 4 + group / 2) >> (group % 2 * 4)) & 15;
  const int high = (ByteAt(block, 2 + group / 4) >> (group % 4 * 2)) & 3;
  const float scale = HalfAt(block, 0) * static_cast<float>((low | high << 4) - 32);
  return scale * static_cast<float>(Iq4Value(NibbleAt(block + 8 + 16 * group, i % 32)));
}

// Element i of a block (the whole row for the formats without blocks).
__device__ inline float ElementOf(WeightType type, FileBlock block, int i) {
  switch (type) {
    case WeightType::kF32:
      return Cast<const float>(block)[i];
    case WeightType::kF16:
      return HalfAt(block, 2 * i);
    case WeightType::kBf16:
      return ToFloat(
          Bf16{static_cast<uint16_t>(ByteAt(block, 2 * i) | ByteAt(block, 2 * i + 1) << 8)});
    case WeightType::kQ4_0:
      return HalfAt(block, 0) * static_cast<float>(NibbleAt(block + 2, i) - 8);
    case WeightType::kQ4_1:
      return HalfAt(block, 0) * static_cast<float>(NibbleAt(block + 4, i)) + HalfAt(block, 2);
    case WeightType::kQ5_0: {
      const int code = NibbleAt(block + 6, i) | FifthBitAt(block + 2, i);
      return HalfAt(block, 0) * static_cast<float>(code - 16);
    }
    case WeightType::kQ5_1: {
      const int code = NibbleAt(block + 8, i) | FifthBitAt(block + 4, i);
      return HalfAt(block, 0) * static_cast<float>(code) + HalfAt(block, 2);
    }
    case WeightType::kQ8_0:
      return HalfAt(block, 0) * static_cast<float>(SignedByteAt(block, 2 + i));
    case WeightType::kQ4_K:
      return ElementQ4K(block, i);
    case WeightType::kQ5_K:
      return ElementQ5K(block, i);
    case WeightType::kQ6_K:
      return ElementQ6K(block, i);
    case WeightType::kQ2_K:
      return ElementQ2K(block, i);
    case WeightType::kQ3_K:
      return ElementQ3K(block, i);
    case WeightType::kIQ4_NL:
      return HalfAt(block, 0) * static_cast<float>(Iq4Value(NibbleAt(block + 2, i)));
    case WeightType::kIQ4_XS:
      return ElementIQ4XS(block, i);
  }
  return 0;
}

// budget: EmbedKernel registers 40 shared 0 threads 256
__global__ void __launch_bounds__(kEmbedThreads) EmbedKernel(EmbedArgs args) {
  const int i = static_cast<int>(blockIdx.y * kEmbedThreads + threadIdx.x);
  if (i >= args.dim) return;
  const TokenId id = args.ids[blockIdx.x];
  const FileBlock row = args.table + id * args.row_bytes;
  const int64_t block = int64_t{i / args.block_elements} * args.block_bytes;
  args.out[int64_t{blockIdx.x} * args.dim + i] =
      ElementOf(args.type, row + block, i % args.block_elements);
}

}  // namespace lynx::cuda
