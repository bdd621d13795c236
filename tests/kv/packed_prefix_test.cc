// SPDX-License-Identifier: Apache-2.0
// The prefix cache with packing, against a model of what every block must hold.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "kv/prefix_cache.h"

namespace lynx {
namespace {

constexpr KvLayout kLayout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 16};
constexpr auto kNoise = std::byte{0xff};  // fills what is encoded, and never a block's KV

// A pool whose blocks hold a number that stands for their KV. It is encoded to `percent` of the
// block's bytes; a lossy codec adds one to the block's losses.
class NumberedPool final : public BlockCodec {
 public:
  NumberedPool(int num_blocks, bool lossless)
      : lossless_(lossless), memory_(num_blocks * kLayout.block_bytes()) {
    view = {.base = memory_.data(), .layout = kLayout, .num_blocks = num_blocks};
  }

  void Set(BlockId block, uint32_t number, std::byte losses = {}) {
    std::fill_n(At(block), kLayout.block_bytes(), std::byte{1});
    std::memcpy(At(block), &number, sizeof(number));
    At(block)[sizeof(number)] = losses;
  }
  int losses(BlockId block) const { return static_cast<int>(At(block)[sizeof(uint32_t)]); }
  uint32_t Get(BlockId block) const {
    uint32_t number;
    std::memcpy(&number, At(block), sizeof(number));
    return number;
  }
  bool HasNoise(BlockId block) const {
    return std::find(At(block) + sizeof(uint32_t), At(block) + kLayout.block_bytes(), kNoise) !=
           At(block) + kLayout.block_bytes();
  }

  bool lossless() const override { return lossless_; }
  void Encode(BlockId block, bool is_first, std::vector<std::byte>* bytes) override {
    bytes->assign(kLayout.block_bytes() * percent / 100, kNoise);
    const uint32_t number = Get(block);
    std::memcpy(bytes->data(), &number, sizeof(number));
    (*bytes)[sizeof(number)] = static_cast<std::byte>(losses(block) + (lossless_ ? 0 : 1));
    bytes->back() = std::byte{is_first};
  }
  void Decode(std::span<const std::byte> bytes, bool is_first, BlockId block) override {
    EXPECT_EQ(bytes.back(), std::byte{is_first});
    uint32_t number;
    std::memcpy(&number, bytes.data(), sizeof(number));
    Set(block, number, bytes[sizeof(number)]);
  }

  KvPoolView view;
  int percent = 70;

 private:
  const bool lossless_;
  std::byte* At(BlockId block) const { return view.base + block * kLayout.block_bytes(); }
  std::vector<std::byte> memory_;
};

class PackedPrefixTest : public testing::TestWithParam<bool> {  // lossless
 protected:
  static constexpr int kNumBlocks = 20;
  struct Running {
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
  };

  // A prompt of full blocks and one token more. Those of one family share their first blocks.
  static std::vector<TokenId> Prompt(int family, int num_shared, int kind, int num_blocks) {
    std::vector<TokenId> tokens(num_blocks * kBlockSize + 1, family);
    for (size_t i = num_shared * kBlockSize; i < tokens.size(); ++i) tokens[i] = 1000 + kind;
    return tokens;
  }
  static uint32_t NumberOf(std::span<const TokenId> prefix) {
    return static_cast<uint32_t>(XXH3_64bits(prefix.data(), prefix.size_bytes())) & 0x7f7f7f7f;
  }

  // As the engine does: hits, then new blocks, all of which hold what they must. False: no room.
  bool Start(const std::vector<TokenId>& tokens, Running* running) {
    const int num_blocks = static_cast<int>(tokens.size()) / kBlockSize;
    const PrefixMatch match = cache_.Match(tokens, "", num_blocks);
    int wanted = num_blocks;
    for (BlockId b : match.blocks) wanted -= b >= 0 && pool_.owned(b) ? 1 : 0;
    if (wanted > pool_.counts().available()) return false;
    const PrefixMatch taken = cache_.Take(match);
    EXPECT_EQ(taken.blocks.size(), match.blocks.size()) << "there was room for all of it";
    num_hits_ += static_cast<int>(taken.blocks.size());
    running->tokens = tokens;
    running->blocks = taken.blocks;
    PrefixId parent = taken.last;
    for (int i = 0; i < num_blocks; ++i) {
      const uint32_t number = NumberOf(std::span(tokens).first((i + 1) * kBlockSize));
      if (i < static_cast<int>(taken.blocks.size())) {
        EXPECT_EQ(numbers_.Get(taken.blocks[i]), number);
        EXPECT_LE(numbers_.losses(taken.blocks[i]), lossless() ? 0 : 1);
        continue;
      }
      const BlockId block = *pool_.Allocate();
      EXPECT_FALSE(numbers_.HasNoise(block));
      numbers_.Set(block, number);
      running->blocks.push_back(block);
      parent =
          cache_.Insert(parent, std::span(tokens).subspan(i * kBlockSize, kBlockSize), "", block);
    }
    return true;
  }
  void End(const Running& running) {
    for (size_t i = 0; i < running.blocks.size(); ++i) {
      EXPECT_EQ(numbers_.Get(running.blocks[i]),
                NumberOf(std::span(running.tokens).first((i + 1) * kBlockSize)));
    }
    for (auto b = running.blocks.rbegin(); b != running.blocks.rend(); ++b) {
      pool_.ReleaseRequest(*b);
    }
  }
  void Run(const std::vector<TokenId>& tokens) {
    Running running;
    ASSERT_TRUE(Start(tokens, &running));
    End(running);
  }

  static bool lossless() { return GetParam(); }

  NumberedPool numbers_{kNumBlocks, lossless()};
  BlockPool pool_{kNumBlocks};
  PrefixCache cache_{pool_, &numbers_, numbers_.view};
  int num_hits_ = 0;
};

// 20 blocks at 70 %: all but the running prompt's 4 blocks is packed, 16 / 0.7 = 22.8.
TEST_P(PackedPrefixTest, HoldsMoreThanThePoolHasBlocks) {
  for (int kind = 0; kind < 10; ++kind) Run(Prompt(0, 0, kind, 4));
  EXPECT_GE(cache_.size(), 4u + 22);
  EXPECT_EQ(pool_.counts().available(), kNumBlocks);
  EXPECT_GT(cache_.packing().num_dropped, 0);
  int num_whole = 0;
  for (int kind = 0; kind < 10; ++kind) {
    num_whole += cache_.Match(Prompt(0, 0, kind, 4), "", 4).blocks.size() == 4 ? 1 : 0;
  }
  EXPECT_EQ(num_whole, 6);
}

TEST_P(PackedPrefixTest, AHitComesBackAndIsKeptOnce) {
  for (int kind = 0; kind < 6; ++kind) Run(Prompt(0, 0, kind, 4));
  ASSERT_GT(cache_.Match(Prompt(0, 0, 0, 4), "", 4).num_packed, 0);
  const int64_t size = static_cast<int64_t>(cache_.size());
  Run(Prompt(0, 0, 0, 4));
  EXPECT_EQ(num_hits_, 4);
  EXPECT_TRUE(!lossless() || cache_.packing().num_dropped == 0);
  EXPECT_EQ(cache_.Match(Prompt(0, 0, 0, 4), "", 4).num_packed, 0);
  const int64_t size_now = static_cast<int64_t>(cache_.size());
  EXPECT_TRUE(lossless() ? size_now == size : size_now <= size) << size_now << " of " << size;
  EXPECT_EQ(cache_.packing().num_packed + pool_.counts().cached, size_now);
}

TEST_P(PackedPrefixTest, WithoutMovesTheOldestIsDropped) {
  for (int kind = 0; kind < 6; ++kind) Run(Prompt(0, 0, kind, 4));
  const PackingStats before = cache_.packing();
  ASSERT_GT(before.num_packed, 0);
  cache_.AllowMoves(0);
  Run(Prompt(0, 0, 7, 4));
  EXPECT_EQ(cache_.packing().num_encoded, before.num_encoded);
  EXPECT_GT(cache_.packing().num_dropped, 0);
  for (int kind = 8; kind < 20; ++kind) Run(Prompt(0, 0, kind, 4));
  EXPECT_EQ(cache_.packing().num_packed, 0);
  EXPECT_EQ(pool_.counts().available(), kNumBlocks);
}

TEST_P(PackedPrefixTest, TakesNoMoreThanAsked) {
  for (int kind = 0; kind < 9; ++kind) Run(Prompt(0, 0, kind, 4));
  const auto tokens = Prompt(0, 0, 4, 4);
  const PrefixMatch match = cache_.Match(tokens, "", 4);
  ASSERT_EQ(match.num_packed, 4);
  const PrefixMatch two = cache_.Take(match, 2);
  ASSERT_EQ(two.blocks.size(), 2u);
  EXPECT_EQ(two.last, cache_.Match(tokens, "", 2).last);
  for (BlockId b : two.blocks) pool_.ReleaseRequest(b);
  EXPECT_EQ(cache_.Match(tokens, "", 4).num_packed, 2);
  EXPECT_EQ(pool_.counts().request, 0);
}

TEST_P(PackedPrefixTest, PacksAheadUntilEnoughIsFree) {
  for (int kind = 0; kind < 5; ++kind) Run(Prompt(0, 0, kind, 4));
  ASSERT_EQ(pool_.counts().free, 0);
  EXPECT_TRUE(cache_.PackAhead(3, 2));
  EXPECT_EQ(cache_.packing().num_encoded, 2);
  while (cache_.PackAhead(3, 2)) continue;
  EXPECT_GE(pool_.counts().free, 3);
  EXPECT_EQ(cache_.size(), 20u);
}

TEST_P(PackedPrefixTest, WhatDoesNotBecomeSmallerIsDropped) {
  numbers_.percent = 120;
  for (int kind = 0; kind < 10; ++kind) Run(Prompt(0, 0, kind, 4));
  EXPECT_EQ(cache_.size(), 20u);
  EXPECT_EQ(cache_.packing().num_packed, 0);
  EXPECT_EQ(pool_.counts().packed, 0);
}

// Everything that is not the match is gone before a part of it is.
TEST_P(PackedPrefixTest, APrefixAsLongAsThePoolComesBackWhole) {
  Run(Prompt(0, 0, 1, kNumBlocks));
  while (cache_.PackAhead(kNumBlocks, kNumBlocks)) continue;
  ASSERT_EQ(cache_.packing().num_packed, kNumBlocks);
  Run(Prompt(0, 0, 1, kNumBlocks));
  EXPECT_EQ(num_hits_, kNumBlocks);
}

TEST_P(PackedPrefixTest, ComputedAgainItIsKeptOnce) {
  for (int kind = 0; kind < 6; ++kind) Run(Prompt(0, 0, kind, 4));
  const auto tokens = Prompt(0, 0, 0, 4);
  const size_t size = cache_.size();
  ASSERT_EQ(cache_.Match(tokens, "", 1).num_packed, 1);
  const BlockId block = *pool_.Allocate();
  numbers_.Set(block, 5);
  const PrefixId id = cache_.Match(tokens, "", 1).last;
  EXPECT_EQ(cache_.Insert(0, std::span(tokens).first(kBlockSize), "", block), id);
  EXPECT_EQ(cache_.Match(tokens, "", 1).blocks, std::vector<BlockId>{block});
  pool_.ReleaseRequest(block);
  EXPECT_LE(cache_.size(), size);
}

// What a lossy codec has made of a block is what every later hit gets.
TEST_P(PackedPrefixTest, HitsAndEvictionsInTurnLoseNoMoreThanOnce) {
  const auto tokens = Prompt(0, 0, 0, 4);
  Run(tokens);
  for (int cycle = 1; cycle <= 5; ++cycle) {
    const int64_t num_encoded = cache_.packing().num_encoded;
    while (cache_.PackAhead(kNumBlocks, kNumBlocks)) continue;
    ASSERT_EQ(cache_.Match(tokens, "", 4).num_packed, 4);
    EXPECT_EQ(cache_.packing().num_packed, 4);
    EXPECT_EQ(cache_.packing().num_encoded - num_encoded, lossless() || cycle == 1 ? 4 : 0);
    Run(tokens);
    EXPECT_EQ(cache_.packing().num_packed, 0);
    EXPECT_EQ(cache_.packing().packed_bytes, 0);
    EXPECT_EQ(pool_.counts().cached, 4);
  }
  EXPECT_EQ(num_hits_, 5 * 4);
}

TEST_P(PackedPrefixTest, RandomUseNeverGivesOtherKvNorLeaks) {
  std::mt19937 rng(5);
  std::vector<Running> running;
  for (int step = 0; step < 6000; ++step) {
    cache_.AllowMoves(rng() % 3 == 0 ? static_cast<int>(rng() % 4) : PrefixCache::kUnlimited);
    numbers_.percent = 55 + static_cast<int>(rng() % 60);
    const int num_blocks = 1 + static_cast<int>(rng() % 7);
    switch (rng() % 4) {
      case 0: {
        Running next;
        const auto tokens = Prompt(static_cast<int>(rng() % 3), std::min<int>(2, num_blocks),
                                   static_cast<int>(rng() % 8), num_blocks);
        if (Start(tokens, &next)) running.push_back(next);
        break;
      }
      case 1:
      case 2: {
        if (running.empty()) break;
        std::swap(running[rng() % running.size()], running.back());
        End(running.back());
        running.pop_back();
        break;
      }
      case 3:
        cache_.PackAhead(static_cast<int>(rng() % 5), 3);
        break;
    }
    const PackingStats packing = cache_.packing();
    ASSERT_LE(packing.packed_bytes,
              static_cast<int64_t>(pool_.counts().packed * kLayout.block_bytes()));
    ASSERT_GE(static_cast<int64_t>(cache_.size()), packing.num_packed + pool_.counts().cached);
    ASSERT_EQ(pool_.counts().transfer, 0);
    ASSERT_FALSE(HasFailure()) << step;
  }
  for (const Running& r : running) End(r);
  EXPECT_EQ(pool_.counts().available(), kNumBlocks);
  EXPECT_GT(num_hits_, 1000);
  EXPECT_GT(cache_.packing().num_restored, 100);
}

INSTANTIATE_TEST_SUITE_P(Codec, PackedPrefixTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Lossless" : "Lossy"; });

}  // namespace
}  // namespace lynx
