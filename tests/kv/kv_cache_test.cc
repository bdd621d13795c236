// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"

namespace lynx {
namespace {

TEST(KvCache, IsAlignedZeroedAndAsLargeAsAsked) {
  const KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 16};
  auto backend = cpu::CpuBackend::Create({});
  auto cache = KvCache::Create(*backend, layout, 5);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvPoolView view = (*cache)->view();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.base) % 64, 0u);
  EXPECT_EQ((*cache)->bytes(), 5 * layout.block_bytes());
  for (size_t i = 0; i < (*cache)->bytes(); ++i) ASSERT_EQ(view.base[i], std::byte{0});
  std::byte* last = view.tile(4, 1, KvKind::kValue, 2) + layout.tile_bytes() - 1;
  EXPECT_EQ(last, view.base + (*cache)->bytes() - 1);
  *last = std::byte{1};
}

// Of the pages of a cache, how many have memory.
size_t NumResidentPages(const KvCache& cache) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((cache.bytes() + page - 1) / page);
  EXPECT_EQ(mincore(cache.view().base, cache.bytes(), pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}

TEST(KvCache, PreparesTheFirstBlocksPartByPart) {
  const KvLayout layout{.num_layers = 8, .num_kv_heads = 8, .head_dim = 64};  // 1 MiB a block
  auto backend = cpu::CpuBackend::Create({});
  const auto cache = *KvCache::Create(*backend, layout, 64);
  const size_t block_pages = layout.block_bytes() / sysconf(_SC_PAGESIZE);
  cache->view().base[5] = std::byte{7};
  EXPECT_FALSE(cache->PrepareMore(0));
  EXPECT_TRUE(cache->PrepareMore(5));
  int num_parts = 1;
  while (cache->PrepareMore(5)) ++num_parts;
  EXPECT_GE(num_parts, 2);
  if (madvise(cache->view().base, 1, MADV_POPULATE_WRITE) != 0) GTEST_SKIP() << "Linux before 5.14";
  EXPECT_GE(NumResidentPages(*cache), 5 * block_pages);
  EXPECT_LT(NumResidentPages(*cache), 64 * block_pages);
  EXPECT_EQ(cache->view().base[5], std::byte{7});
  while (cache->PrepareMore(1000)) {
  }
  EXPECT_EQ(NumResidentPages(*cache), 64 * block_pages);
  EXPECT_EQ(cache->view().base[5], std::byte{7});
  EXPECT_EQ(cache->view().base[cache->bytes() - 1], std::byte{0});
}

TEST(KvCache, CopiesABlockOfEveryPart) {
  const KvLayout layout{.num_layers = 2, .num_kv_heads = 4, .head_dim = 16};
  auto first = cpu::CpuBackend::Create({}), second = cpu::CpuBackend::Create({});
  Backend* const backends[] = {first.get(), second.get()};
  for (const int num_parts : {1, 2}) {
    const auto cache = *KvCache::Create(std::span(backends, num_parts), layout, 5);
    const KvPoolView view = cache->view();
    const auto for_each_tile = [&](BlockId block, const auto& visit) {
      for (int layer = 0; layer < layout.num_layers; ++layer) {
        for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
          for (int head = 0; head < layout.num_kv_heads; ++head) {
            visit(view.tile(block, layer, kind, head),
                  1 + layer * 8 + static_cast<int>(kind) * 4 + head);
          }
        }
      }
    };
    for_each_tile(3, [&](std::byte* tile, int value) {
      std::fill_n(tile, layout.tile_bytes(), static_cast<std::byte>(value));
    });
    cache->CopyBlock(3, 1);
    for (const BlockId block : {0, 1, 2, 3, 4}) {
      const bool full = block == 1 || block == 3;
      for_each_tile(block, [&](const std::byte* tile, int value) {
        const auto want = static_cast<std::byte>(full ? value : 0);
        EXPECT_TRUE(
            std::all_of(tile, tile + layout.tile_bytes(), [&](std::byte b) { return b == want; }));
      });
    }
  }
}

TEST(KvCache, RefusesNonsense) {
  const KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 16};
  auto backend = cpu::CpuBackend::Create({});
  EXPECT_EQ(KvCache::Create(*backend, layout, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
  const KvLayout huge{.num_layers = 1 << 20, .num_kv_heads = 1 << 10, .head_dim = 1 << 10};
  EXPECT_EQ(KvCache::Create(*backend, huge, 1 << 20).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lynx
