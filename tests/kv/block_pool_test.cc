// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(BlockPool, GivesEveryBlockOnceThenNothing) {
  BlockPool pool(5);
  std::set<BlockId> blocks;
  for (int i = 0; i < 5; ++i) blocks.insert(*pool.Allocate());
  EXPECT_EQ(blocks.size(), 5u);
  EXPECT_FALSE(pool.Allocate());
  EXPECT_EQ(pool.counts().request, 5);
}

TEST(BlockPool, KnowsWhatWasNeverGivenOut) {
  BlockPool pool(4);
  EXPECT_EQ(pool.num_ever_used(), 0);
  const BlockId first = *pool.Allocate();
  pool.Allocate();
  pool.ReleaseRequest(first);
  EXPECT_EQ(pool.num_ever_used(), 2);
  pool.Allocate();
  EXPECT_EQ(pool.num_ever_used(), 3);
}

// The rule that keeps a late byte of a transfer out of another request's KV.
TEST(BlockPool, ABlockIsFreeOnlyWhenRequestAndTransferAreDone) {
  BlockPool pool(1);
  const BlockId block = *pool.Allocate();
  pool.AddTransfer(block);
  pool.ReleaseRequest(block);
  EXPECT_EQ(pool.counts().transfer, 1);
  EXPECT_FALSE(pool.Allocate());
  pool.ReleaseTransfer(block);
  EXPECT_EQ(pool.counts().free, 1);

  const BlockId again = *pool.Allocate();
  pool.AddTransfer(again);
  pool.ReleaseTransfer(again);
  EXPECT_EQ(pool.counts().request, 1);
  EXPECT_FALSE(pool.Allocate());
}

TEST(BlockPool, RememberedBlocksGoLastAndOldestFirst) {
  BlockPool pool(3);
  std::vector<BlockId> evicted;
  pool.set_make_room([&] {
    evicted.push_back(*pool.oldest_cached());
    pool.Forget(evicted.back());
  });
  const BlockId a = *pool.Allocate(), b = *pool.Allocate(), c = *pool.Allocate();
  pool.Remember(a);
  pool.Remember(b);
  pool.ReleaseRequest(b);
  pool.ReleaseRequest(a);
  pool.ReleaseRequest(c);
  EXPECT_EQ(pool.counts().cached, 2);
  EXPECT_EQ(*pool.Allocate(), c);
  EXPECT_TRUE(evicted.empty());
  pool.AddRequest(b);  // a hit: b is used again, so a is the oldest
  pool.ReleaseRequest(b);
  EXPECT_EQ(*pool.Allocate(), a);
  EXPECT_EQ(*pool.Allocate(), b);
  EXPECT_EQ(evicted, (std::vector<BlockId>{a, b}));
}

TEST(BlockPool, RandomOwnersNeverLeak) {
  constexpr int kBlocks = 20;
  BlockPool pool(kBlocks);
  std::vector<BlockId> lent;
  const auto make_room = [&] {
    if (const auto cached = pool.oldest_cached()) return pool.Forget(*cached);
    pool.TakeBack(lent.back());
    lent.pop_back();
  };
  pool.set_make_room(make_room);
  std::mt19937 rng(3);
  std::vector<BlockId> requests, transfers;
  const auto take = [&](std::vector<BlockId>& from) {
    const size_t i = rng() % from.size();
    std::swap(from[i], from.back());
    const BlockId block = from.back();
    from.pop_back();
    return block;
  };
  for (int step = 0; step < 20000; ++step) {
    switch (rng() % 7) {
      case 0:
        if (const auto block = pool.Allocate()) requests.push_back(*block);
        break;
      case 1:
        if (!requests.empty()) pool.ReleaseRequest(take(requests));
        break;
      case 2:
        if (requests.empty()) break;
        transfers.push_back(requests[rng() % requests.size()]);
        pool.AddTransfer(transfers.back());
        break;
      case 3:
        if (!transfers.empty()) pool.ReleaseTransfer(take(transfers));
        break;
      case 4:
        if (!requests.empty()) pool.Remember(requests[rng() % requests.size()]);
        break;
      case 5:
        if (!requests.empty()) pool.Forget(requests[rng() % requests.size()]);
        break;
      case 6:
        if (const auto cached = pool.oldest_cached()) {
          pool.Forget(*cached);
          pool.Lend(*cached);
          lent.push_back(*cached);
        }
        break;
    }
    std::set<BlockId> owned(requests.begin(), requests.end());
    const auto by_requests = static_cast<int>(owned.size());
    owned.insert(transfers.begin(), transfers.end());
    const BlockCounts counts = pool.counts();
    ASSERT_EQ(counts.request, by_requests);
    ASSERT_EQ(counts.packed, static_cast<int>(lent.size()));
    ASSERT_EQ(counts.transfer, static_cast<int>(owned.size()) - by_requests);
    ASSERT_EQ(counts.available(), kBlocks - static_cast<int>(owned.size()));
  }
  while (!requests.empty()) pool.ReleaseRequest(take(requests));
  while (!transfers.empty()) pool.ReleaseTransfer(take(transfers));
  EXPECT_EQ(pool.counts().available(), kBlocks);
}

}  // namespace
}  // namespace lynx
