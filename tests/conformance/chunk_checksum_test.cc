// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/chunk_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/plane_store.h"
#include "lynx/device_chunks.h"
#include "tests/conformance/device.h"

namespace lynx::cuda {
namespace {

std::vector<std::byte> RandomBytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = std::byte(random());
  return bytes;
}

uint64_t Expected(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (uint64_t piece = 0; !bytes.empty(); ++piece) {
    const size_t size = std::min(bytes.size(), kChecksumPieceBytes);
    sum += XXH64(bytes.data(), size, piece);
    bytes = bytes.subspan(size);
  }
  return sum;
}

class ChunkChecksumTest : public DeviceTest {
 protected:
  std::vector<unsigned long long> Checksums(const std::vector<std::vector<std::byte>>& chunks) {
    std::vector<DeviceArray<std::byte>> device;
    std::vector<std::span<const std::byte>> spans;
    for (const auto& chunk : chunks) {
      device.emplace_back(chunk);
      spans.emplace_back(device.back().data(), chunk.size());
    }
    DeviceArray<unsigned long long> sums(chunks.size());
    ChunkChecksum(stream(), spans, sums.data());
    return sums.Download();
  }
};

// Every tail of a stripe, and lengths around a piece and a block of pieces.
TEST_F(ChunkChecksumTest, IsTheSumOfTheLibrarysHashes) {
  std::vector<size_t> sizes = {0, 1023, 1024, 1025, 2047, 2048, 65535, 65536, 65537, 70001};
  for (size_t size = 1; size < 70; ++size) sizes.push_back(size);
  for (size_t begin = 0; begin < sizes.size(); begin += kMaxChecksumChunks) {
    std::vector<std::vector<std::byte>> chunks;
    for (size_t i = begin; i < std::min(begin + kMaxChecksumChunks, sizes.size()); ++i) {
      chunks.push_back(RandomBytes(sizes[i], static_cast<unsigned>(i)));
    }
    const auto sums = Checksums(chunks);
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(sums[i], Expected(chunks[i])) << chunks[i].size() << " bytes";
    }
  }
}

TEST_F(ChunkChecksumTest, SeesWhereAPieceStands) {
  std::vector<std::byte> chunk = RandomBytes(4 * kChecksumPieceBytes, 1);
  std::vector<std::byte> swapped = chunk;
  std::swap_ranges(swapped.begin(), swapped.begin() + kChecksumPieceBytes,
                   swapped.begin() + kChecksumPieceBytes);
  const auto sums = Checksums({chunk, swapped});
  EXPECT_NE(sums[0], sums[1]);
}

using PlaneStoreTest = DeviceTest;

// Whatever lies behind a plane, zeros fill it up.
TEST_F(PlaneStoreTest, FillsUpWithZeros) {
  const std::vector<uint32_t> sizes = {0, 1, 3, 4, 5, 8, 12, 15, 16, 17, 4096, 4099};
  std::vector<DeviceArray<std::byte>> from, to;
  std::vector<std::vector<std::byte>> want;
  std::vector<PlaneMove> moves;
  for (const uint32_t size : sizes) {
    std::vector<std::byte> bytes = RandomBytes(PaddedChunkBytes(size) + 16, size);
    from.emplace_back(bytes);
    // A vector more than the plane has: it stays as it is.
    to.emplace_back(std::vector<std::byte>(bytes.size(), std::byte{0x77}));
    std::fill(bytes.begin() + size, bytes.begin() + PaddedChunkBytes(size), std::byte{0});
    std::fill(bytes.begin() + PaddedChunkBytes(size), bytes.end(), std::byte{0x77});
    want.push_back(bytes);
    moves.push_back({.from = from.back().data(), .to = to.back().data(), .bytes = size});
  }
  const DeviceArray<PlaneMove> list(moves);
  StorePlanes(stream(), list.data(), static_cast<int>(moves.size()));
  for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(to[i].Download(), want[i]) << sizes[i];
}

}  // namespace
}  // namespace lynx::cuda
