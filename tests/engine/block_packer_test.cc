// SPDX-License-Identifier: Apache-2.0
// What packed blocks come back as, in one memory and divided among ranks.
#include "engine/block_packer.h"

#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kv/kv_cache.h"
#include "kv/prefix_cache.h"
#include "lynx/plane_format.h"
#include "tests/kv/for_each_tile.h"

namespace lynx {
namespace {

constexpr int kNumBlocks = 8;
constexpr PageShape kFirst{
    .head_dim = 32, .num_tokens = kBlockSize, .num_protected_head = kNumSinkTokens};
constexpr PageShape kLater{.head_dim = 32, .num_tokens = kBlockSize};

class BlockPackerTest : public testing::TestWithParam<std::tuple<int, KvDtype>> {  // ranks
 protected:
  BlockPackerTest() {
    std::vector<Backend*> ranks;
    for (int r = 0; r < std::get<0>(GetParam()); ++r) {
      backends_.push_back(cpu::CpuBackend::Create({}));
      ranks.push_back(backends_.back().get());
    }
    cache_ = *KvCache::Create(ranks, layout_, kNumBlocks);
  }
  std::unique_ptr<BlockPacker> Packer(int num_planes) const {
    return *BlockPacker::Create(*backends_[0], cache_->view(), num_planes, [] { return 0; });
  }
  template <typename Visit>  // visit(kind, tile)
  void VisitTiles(BlockId block, Visit visit) const {
    ForEachTile(layout_, [&](int layer, KvKind kind, int head) {
      visit(kind, cache_->view().tile(block, layer, kind, head));
    });
  }
  // Numbers of the size of KV; the lower halves of float32 ones are not zero.
  void Fill(BlockId block, uint32_t seed) const {
    std::mt19937 rng(seed);
    std::normal_distribution<float> noise(2, 1);
    VisitTiles(block, [&](KvKind, std::byte* tile) {
      for (size_t e = 0; e < layout_.tile_elements(); ++e) {
        const float value = noise(rng);
        const Bf16 rounded = ToBf16(value);
        const void* from = layout_.dtype == KvDtype::kF32 ? static_cast<const void*>(&value)
                                                          : static_cast<const void*>(&rounded);
        std::memcpy(tile + e * layout_.element_bytes(), from, layout_.element_bytes());
      }
    });
  }
  std::vector<std::byte> Bits(BlockId block) const {
    std::vector<std::byte> bits;
    VisitTiles(block, [&](KvKind, const std::byte* tile) {
      bits.insert(bits.end(), tile, tile + layout_.tile_bytes());
    });
    return bits;
  }
  // The block's tiles, each through the codec's first four planes.
  std::vector<std::byte> EightBits(BlockId block, PageShape shape) const {
    const auto codec = *MakeCodec("planes", *backends_[0]);
    const size_t offset = layout_.element_bytes() - sizeof(Bf16);  // the upper half
    std::vector<std::byte> bits;
    VisitTiles(block, [&](KvKind kind, const std::byte* tile) {
      shape.kind = kind;
      std::vector<Bf16> values(layout_.tile_elements()), decoded(layout_.tile_elements());
      for (size_t e = 0; e < values.size(); ++e) {
        std::memcpy(&values[e], tile + e * layout_.element_bytes() + offset, sizeof(Bf16));
      }
      std::vector<std::vector<std::byte>> planes(kNumPlanes);
      codec->Encode(shape, {values.data()}, planes);
      const std::vector<std::span<const std::byte>> prefix(planes.begin(),
                                                           planes.begin() + kExactPlane);
      EXPECT_TRUE(codec->Decode(shape, prefix, {decoded.data()}).ok());
      const size_t begin = bits.size();
      bits.resize(begin + layout_.tile_bytes());
      for (size_t e = 0; e < values.size(); ++e) {
        std::memcpy(&bits[begin + e * layout_.element_bytes() + offset], &decoded[e], sizeof(Bf16));
      }
    });
    return bits;
  }

  const KvLayout layout_{
      .num_layers = 2, .num_kv_heads = 4, .head_dim = 32, .dtype = std::get<1>(GetParam())};
  std::vector<std::unique_ptr<Backend>> backends_;
  std::unique_ptr<KvCache> cache_;
};

TEST_P(BlockPackerTest, AllPlanesGiveEveryBitBack) {
  const auto packer = Packer(kNumPlanes);
  EXPECT_TRUE(packer->lossless());
  for (const bool is_first : {true, false}) {
    Fill(1, 5);
    std::vector<std::byte> packed;
    packer->Encode(1, is_first, &packed);
    packer->Decode(packed, is_first, 6);
    EXPECT_EQ(Bits(6), Bits(1)) << is_first;
  }
}

TEST_P(BlockPackerTest, EightBitsGiveWhatThePrefixOfThePlanesDecodesTo) {
  const auto packer = Packer(kExactPlane);
  EXPECT_FALSE(packer->lossless());
  for (const bool is_first : {true, false}) {
    Fill(1, 5);
    Fill(6, 7);
    std::vector<std::byte> packed, exact;
    packer->Encode(1, is_first, &packed);
    packer->Decode(packed, is_first, 6);
    EXPECT_EQ(Bits(6), EightBits(1, is_first ? kFirst : kLater)) << is_first;
    EXPECT_NE(Bits(6), Bits(1));
    Packer(kNumPlanes)->Encode(1, is_first, &exact);
    EXPECT_LT(packed.size(), exact.size());
  }
}

// The block is packed and found again and again, and what was decoded is never encoded anew.
TEST_P(BlockPackerTest, EightBitsStayTheSameOverManyHits) {
  const auto packer = Packer(kExactPlane);
  BlockPool pool(kNumBlocks);
  PrefixCache cache(pool, packer.get(), cache_->view());
  const std::vector<TokenId> tokens(kBlockSize, 3);
  const BlockId block = *pool.Allocate();
  Fill(block, 5);
  const auto want = EightBits(block, kFirst);
  cache.Insert(0, tokens, "", block);
  pool.ReleaseRequest(block);
  for (int cycle = 0; cycle < 5; ++cycle) {
    while (cache.PackAhead(kNumBlocks, kNumBlocks)) continue;
    const PrefixMatch match = cache.Match(tokens, "", 1);
    ASSERT_EQ(match.num_packed, 1);
    const PrefixMatch taken = cache.Take(match);
    ASSERT_EQ(taken.blocks.size(), 1u);
    EXPECT_EQ(Bits(taken.blocks[0]), want) << cycle;
    pool.ReleaseRequest(taken.blocks[0]);
  }
  EXPECT_EQ(cache.packing().num_encoded, 1);
  EXPECT_EQ(cache.packing().num_restored, 5);
}

INSTANTIATE_TEST_SUITE_P(Ranks, BlockPackerTest,
                         testing::Combine(testing::Values(1, 2),
                                          testing::Values(KvDtype::kBf16, KvDtype::kF32)));

}  // namespace
}  // namespace lynx
