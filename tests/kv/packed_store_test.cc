// SPDX-License-Identifier: Apache-2.0
#include "kv/packed_store.h"

#include <algorithm>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace lynx {
namespace {

constexpr int kNumBlocks = 12;
using Bytes = std::vector<std::byte>;

// A pool of blocks of 8 KiB, in one memory or divided between two ranks. All of it is dirty.
class PackedStoreTest : public testing::TestWithParam<int> {
 protected:
  PackedStoreTest() {
    const size_t bytes = kNumBlocks * layout_.block_bytes() / GetParam();
    for (int rank = 0; rank < GetParam(); ++rank) {
      memory_.emplace_back(bytes, std::byte{0x7f});
      shards_.push_back(memory_.back().data());
    }
    pool_ = {.layout = layout_, .num_blocks = kNumBlocks};
    if (GetParam() == 1) {
      pool_.base = shards_[0];
    } else {
      pool_.shards = shards_;
    }
  }
  static Bytes Random(size_t size, uint32_t seed) {
    std::mt19937 rng(seed);
    Bytes bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    return bytes;
  }
  static Bytes Read(const PackedStore& store, PackedStore::Handle item) {
    Bytes bytes = {std::byte{1}};
    store.Get(item, &bytes);
    return bytes;
  }
  bool IsZero(BlockId block) const {
    for (int rank = 0; rank < GetParam(); ++rank) {
      const KvPoolView part = pool_.shard(rank);
      const std::byte* begin = part.base + block * part.layout.block_bytes();
      if (std::any_of(begin, begin + part.layout.block_bytes(),
                      [](std::byte b) { return b != std::byte{0}; })) {
        return false;
      }
    }
    return true;
  }

  const KvLayout layout_{.num_layers = 1, .num_kv_heads = 2, .head_dim = 16};
  std::vector<Bytes> memory_;
  std::vector<std::byte*> shards_;
  KvPoolView pool_;
};

TEST_P(PackedStoreTest, GivesBackWhatWasPutAndLosesLessThanAUnitEach) {
  PackedStore store(pool_);
  const size_t unit_bytes = layout_.block_bytes() / store.units_per_block();
  EXPECT_EQ(store.UnitsFor(unit_bytes), 1);
  EXPECT_EQ(store.UnitsFor(unit_bytes + 1), 2);
  store.Lend(3);
  store.Lend(7);
  std::vector<std::pair<PackedStore::Handle, Bytes>> items;
  for (uint32_t i = 0; store.num_free_units() >= store.UnitsFor(900 + i); ++i) {
    const Bytes bytes = Random(900 + i, i);
    items.emplace_back(store.Put({i, i}, bytes), bytes);
  }
  EXPECT_GE(items.size(), 2 * layout_.block_bytes() / (920 + unit_bytes));
  for (const auto& [item, bytes] : items) EXPECT_EQ(Read(store, item), bytes);
}

TEST_P(PackedStoreTest, OldestIsByPutAndTouch) {
  PackedStore store(pool_);
  store.Lend(0);
  const auto a = store.Put({1, 0}, Random(100, 1));
  const auto b = store.Put({2, 0}, Random(100, 2));
  EXPECT_EQ(store.oldest(), a);
  store.Touch(a);
  EXPECT_EQ(store.oldest(), b);
  store.Erase(b);
  EXPECT_EQ(store.oldest()->key, (PrefixKey{1, 0}));
  store.Erase(a);
  EXPECT_EQ(store.num_items(), 0);
  EXPECT_EQ(store.item_bytes(), 0u);
  EXPECT_EQ(store.num_free_units(), store.units_per_block());
  EXPECT_EQ(store.GiveBack(), 0);
  EXPECT_TRUE(IsZero(0));
  EXPECT_EQ(store.num_blocks(), 0);
}

// Against a model that keeps every item by itself.
TEST_P(PackedStoreTest, RandomUseKeepsEveryByte) {
  PackedStore store(pool_);
  std::mt19937 rng(11);
  std::set<BlockId> lent;
  std::vector<std::pair<PackedStore::Handle, Bytes>> items;  // oldest first
  for (uint32_t step = 0; step < 4000; ++step) {
    const size_t i = items.empty() ? 0 : rng() % items.size();
    switch (rng() % 5) {
      case 0:
      case 1: {
        const Bytes bytes = Random(1 + rng() % 7000, step);
        if (store.UnitsFor(bytes.size()) <= store.num_free_units()) {
          items.emplace_back(store.Put({step, 1}, bytes), bytes);
        } else if (const BlockId block = rng() % kNumBlocks; lent.insert(block).second) {
          store.Lend(block);
        }
        break;
      }
      case 2:
        if (items.empty()) break;
        store.Erase(items[i].first);
        items.erase(items.begin() + i);
        break;
      case 3:
        if (items.empty()) break;
        store.Touch(items[i].first);
        std::rotate(items.begin() + i, items.begin() + i + 1, items.end());
        break;
      case 4:
        if (store.num_free_units() < store.units_per_block()) break;
        const BlockId block = store.GiveBack();
        ASSERT_EQ(lent.erase(block), 1u);
        ASSERT_TRUE(IsZero(block));
        break;
    }
    int num_units = 0;
    size_t num_bytes = 0;
    for (const auto& [item, bytes] : items) {
      num_units += store.UnitsFor(bytes.size());
      num_bytes += bytes.size();
    }
    ASSERT_EQ(store.num_blocks(), static_cast<int>(lent.size()));
    ASSERT_EQ(store.num_free_units() + num_units, store.num_blocks() * store.units_per_block());
    ASSERT_EQ(store.item_bytes(), num_bytes);
    if (items.empty()) continue;
    ASSERT_EQ(store.oldest(), items[0].first);
    const auto& [item, bytes] = items[rng() % items.size()];
    ASSERT_EQ(Read(store, item), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PackedStoreTest, testing::Values(1, 2));

}  // namespace
}  // namespace lynx
