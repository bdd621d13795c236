// SPDX-License-Identifier: Apache-2.0
// Checksums of chunks (lynx/device_chunks.h). A thread hashes one piece of 1 KiB by xxHash64
// (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md, XXH64); a warp adds its 32 hashes and
// its first lane adds the sum to the chunk's. Sums of integers: in any order the same. Reads each
// byte once.
#pragma once

#include "kernels/cuda/chunk_checksum.h"
#include "kernels/cuda/device.cuh"
#include "lynx/device_chunks.h"

namespace lynx::cuda {

struct ChunkChecksumArgs {
  Global<const std::byte> chunks[kMaxChecksumChunks];  // [gridDim.y]
  uint64_t bytes[kMaxChecksumChunks] = {};
  Global<unsigned long long> sums;  // [gridDim.y], added to
};

inline constexpr int kChecksumThreads = 64;

namespace xxh64 {

inline constexpr uint64_t kPrime1 = 0x9e3779b185ebca87, kPrime2 = 0xc2b2ae3d27d4eb4f,
                          kPrime3 = 0x165667b19e3779f9, kPrime4 = 0x85ebca77c2b2ae63,
                          kPrime5 = 0x27d4eb2f165667c5;

__device__ inline uint64_t Rotate(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }
__device__ inline uint64_t Round(uint64_t lane, uint64_t input) {
  return Rotate(lane + input * kPrime2, 31) * kPrime1;
}
__device__ inline uint64_t Merge(uint64_t hash, uint64_t lane) {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
}

// The four lanes over whole stripes of 32 bytes.
__device__ inline uint64_t HashStripes(Global<const uint64_t> words, int num_stripes,
                                       uint64_t seed) {
  uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
  for (int i = 0; i < num_stripes * 4; i += 4) {
    const uint64_t w0 = words[i], w1 = words[i + 1], w2 = words[i + 2], w3 = words[i + 3];
    a = Round(a, w0);
    b = Round(b, w1);
    c = Round(c, w2);
    d = Round(d, w3);
  }
  const uint64_t hash = Rotate(a, 1) + Rotate(b, 7) + Rotate(c, 12) + Rotate(d, 18);
  return Merge(Merge(Merge(Merge(hash, a), b), c), d);
}

// data: aligned to 8 bytes.
__device__ inline uint64_t Hash(Global<const std::byte> data, int size, uint64_t seed) {
  const int num_stripes = size / 32;
  const Global<const uint64_t> words = Cast<const uint64_t>(data);
  uint64_t hash = num_stripes > 0 ? HashStripes(words, num_stripes, seed) : seed + kPrime5;
  hash += static_cast<uint64_t>(size);
  int at = num_stripes * 32;
  for (; at + 8 <= size; at += 8) {
    const uint64_t word = words[at / 8];
    hash = Rotate(hash ^ Round(0, word), 27) * kPrime1 + kPrime4;
  }
  if (at + 4 <= size) {
    const uint32_t half = Cast<const uint32_t>(data)[at / 4];
    hash = Rotate(hash ^ half * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < size; ++at) {
    const uint8_t byte = Cast<const uint8_t>(data)[at];
    hash = Rotate(hash ^ byte * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace xxh64

// budget: ChunkChecksumKernel registers 48 shared 0 threads 64
__global__ void __launch_bounds__(kChecksumThreads) ChunkChecksumKernel(ChunkChecksumArgs args) {
  const uint64_t bytes = args.bytes[blockIdx.y];
  const uint64_t piece = uint64_t{blockIdx.x} * kChecksumThreads + threadIdx.x;
  const uint64_t begin = piece * kChecksumPieceBytes;
  unsigned long long sum = 0;
  if (begin < bytes) {
    const uint64_t left = bytes - begin;
    const int size = static_cast<int>(left < kChecksumPieceBytes ? left : kChecksumPieceBytes);
    sum = xxh64::Hash(args.chunks[blockIdx.y] + begin, size, piece);
  }
  for (int d = kWarpSize / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kFullMask, sum, d);
  if (threadIdx.x % kWarpSize == 0) atomicAdd(args.sums + blockIdx.y, sum);
}

}  // namespace lynx::cuda
