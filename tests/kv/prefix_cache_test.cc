// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <numeric>

#include "gtest/gtest.h"

namespace lynx {
namespace {

class PrefixCacheTest : public testing::Test {
 protected:
  static std::vector<TokenId> Tokens(int n, TokenId first) {
    std::vector<TokenId> tokens(n);
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  // Computes (in name) all full blocks of a prompt and enters them.
  std::vector<BlockId> Enter(const std::vector<TokenId>& tokens, const std::string& salt = "") {
    std::vector<BlockId> blocks;
    PrefixId parent = 0;
    for (size_t i = 0; i + kBlockSize <= tokens.size(); i += kBlockSize) {
      blocks.push_back(*pool_.Allocate());
      parent = cache_.Insert(parent, std::span(tokens).subspan(i, kBlockSize), salt, blocks.back());
    }
    return blocks;
  }
  void Release(const std::vector<BlockId>& blocks) {
    for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) pool_.ReleaseRequest(*it);
  }

  BlockPool pool_{8};
  PrefixCache cache_{pool_};
};

TEST_F(PrefixCacheTest, FindsTheLongestRunOfFullBlocks) {
  const auto tokens = Tokens(200, 0);
  const auto blocks = Enter(tokens);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks, blocks);
  EXPECT_EQ(cache_.Match(std::span(tokens).first(191), "", 100).blocks.size(), 2u);
  EXPECT_EQ(cache_.Match(tokens, "", 1).blocks.size(), 1u);
  auto other = tokens;
  other[70] = 999;
  EXPECT_EQ(cache_.Match(other, "", 100).blocks.size(), 1u);
  other[0] = 999;
  EXPECT_TRUE(cache_.Match(other, "", 100).blocks.empty());
}

TEST_F(PrefixCacheTest, SaltsKeepTenantsApart) {
  const auto tokens = Tokens(128, 0);
  const auto a = Enter(tokens, "a");
  EXPECT_TRUE(cache_.Match(tokens, "", 100).blocks.empty());
  EXPECT_TRUE(cache_.Match(tokens, "b", 100).blocks.empty());
  EXPECT_EQ(cache_.Match(tokens, "a", 100).blocks, a);
}

TEST_F(PrefixCacheTest, TheSameBlockAfterAnotherParentIsAnotherEntry) {
  auto first = Tokens(128, 0);
  auto second = Tokens(128, 500);
  std::copy(first.begin() + 64, first.end(), second.begin() + 64);
  const auto a = Enter(first);
  const auto b = Enter(second);
  EXPECT_EQ(cache_.Match(first, "", 100).blocks, a);
  EXPECT_EQ(cache_.Match(second, "", 100).blocks, b);
}

TEST_F(PrefixCacheTest, ASecondCopyStaysUnknown) {
  const auto tokens = Tokens(128, 0);
  const auto a = Enter(tokens);
  const auto b = Enter(tokens);
  EXPECT_EQ(cache_.size(), 2u);
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks, a);
  Release(b);
  EXPECT_EQ(pool_.counts().free, 6);
}

TEST_F(PrefixCacheTest, SurvivesItsRequestsUntilMemoryIsNeeded) {
  const auto tokens = Tokens(256, 0);
  const auto blocks = Enter(tokens);
  Release(blocks);
  EXPECT_EQ(pool_.counts().cached, 4);
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks, blocks);
  // Six new blocks: four free ones, then the two least recently used: the tail of the prompt.
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(pool_.Allocate());
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks.size(), 2u);
  EXPECT_EQ(cache_.size(), 2u);
}

TEST_F(PrefixCacheTest, AHitKeepsItsBlocks) {
  const auto tokens = Tokens(128, 0);
  Release(Enter(tokens));
  const auto hit = cache_.Match(tokens, "", 100);
  for (BlockId b : hit.blocks) pool_.AddRequest(b);
  int given = 0;
  while (pool_.Allocate()) ++given;
  EXPECT_EQ(given, 6);
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks, hit.blocks);
}

// An entry whose parent was evicted and computed again must not come back.
TEST_F(PrefixCacheTest, OrphansAreNotAdopted) {
  const auto tokens = Tokens(128, 0);
  const auto blocks = Enter(tokens);
  pool_.ReleaseRequest(blocks[0]);  // the parent goes first, against the usual order
  while (pool_.counts().available() > 0) pool_.Allocate();
  EXPECT_TRUE(cache_.Match(tokens, "", 100).blocks.empty());
  pool_.ReleaseRequest(blocks[1]);
  const BlockId fresh = *pool_.Allocate();
  cache_.Insert(0, std::span(tokens).first(64), "", fresh);
  EXPECT_EQ(cache_.Match(tokens, "", 100).blocks, std::vector<BlockId>{fresh});
}

}  // namespace
}  // namespace lynx
