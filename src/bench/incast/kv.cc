// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/kv.h"

#include <algorithm>

#include "codec/kv_page_codec.h"
#include "handoff/page_grid.h"
#include "kernels/cpu/cpu_backend.h"
#include "kv/block_pool.h"

namespace lynx {
namespace {

// Channels of different size and offset, as keys and values have them.
void Fill(const KvPoolView& pool) {
  uint32_t state = 1;
  const auto uniform = [&state] {  // [-1, 1)
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  };
  const size_t elements = pool.layout.tile_elements();
  const int head_dim = pool.layout.head_dim;
  std::vector<float> scale(head_dim), offset(head_dim);
  for (int layer = 0; layer < pool.layout.num_layers; ++layer) {
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      for (int head = 0; head < pool.layout.num_kv_heads; ++head) {
        for (int c = 0; c < head_dim; ++c) {
          scale[c] = 0.5f + uniform() * uniform();
          offset[c] = 2 * uniform();
        }
        for (BlockId block = 0; block < pool.num_blocks; ++block) {
          auto* tile = reinterpret_cast<Bf16*>(pool.tile(block, layer, kind, head));
          for (size_t i = 0; i < elements; ++i) {
            const size_t c = kind == KvKind::kKey ? i / kBlockSize : i % head_dim;
            const float bell = uniform() + uniform() + uniform();
            tile[i] = ToBf16(offset[c] + scale[c] * bell);
          }
        }
      }
    }
  }
}

absl::StatusOr<ClassBytes> EncodedBytes(const IncastKv& kv, int num_tokens) {
  const KvPoolView& pool = kv.cache->view();
  LYNX_ASSIGN_OR_RETURN(const auto codec, KvPageCodec::Create(*kv.codec, kv.plan, pool.layout));
  const PageGrid grid{0, num_tokens};
  const std::vector<BlockId> blocks = FirstBlocks(num_tokens);
  ClassBytes bytes = {};
  std::vector<std::vector<std::byte>> stages(codec->num_stages());
  for (int layer = 0; layer < pool.layout.num_layers; ++layer) {
    for (int page = 0; page < grid.num_pages(); ++page) {
      codec->EncodePage(pool, grid.page({0, layer, page, 0}, pool.layout.num_kv_heads, blocks),
                        stages);
      for (int s = 0; s < codec->num_stages(); ++s) {
        bytes[PullClass(s)] += static_cast<double>(stages[s].size());
      }
    }
  }
  return bytes;
}

}  // namespace

std::vector<BlockId> FirstBlocks(int num_tokens) {
  std::vector<BlockId> blocks(BlocksFor(num_tokens));
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<BlockId>(i);
  return blocks;
}

absl::StatusOr<IncastKv> IncastKv::Create(const std::string& codec, const KvLayout& layout,
                                          const std::vector<int>& prompt_tokens) {
  IncastKv kv;
  kv.backend = cpu::CpuBackend::Create({});
  LYNX_ASSIGN_OR_RETURN(kv.codec, MakeCodec(codec, *kv.backend));
  kv.plan = DefaultSendPlan(*kv.codec, layout.num_layers, /*exact_target=*/true);
  if (kv.plan.num_stages() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--codec: ", codec, " has one stage, and so no anchor to put first"));
  }
  const int longest = *std::max_element(prompt_tokens.begin(), prompt_tokens.end());
  LYNX_ASSIGN_OR_RETURN(kv.cache, KvCache::Create(*kv.backend, layout, BlocksFor(longest)));
  Fill(kv.cache->view());
  for (int tokens : prompt_tokens) {
    LYNX_ASSIGN_OR_RETURN(kv.sizes[tokens], EncodedBytes(kv, tokens));
  }
  return kv;
}

}  // namespace lynx
