// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_cache.h"

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
