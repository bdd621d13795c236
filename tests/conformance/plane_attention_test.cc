// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/plane_attention.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "tests/conformance/attention_case.h"
#include "tests/kernels_cpu/plane_pages.h"

namespace lynx::cuda {
namespace {

using cpu::SameBits;

// A sequence of which some blocks, from block `begin` on, also lie in planes on the device. The
// pool's tiles of those blocks become what the planes decode to.
class PlaneSequence {
 public:
  struct Prefix {
    int key_planes = 0;
    int value_planes = 0;
  };

  PlaneSequence(const AttentionCase& c, int begin, int num_tokens, Prefix prefix)
      : sequence_(c), prefix_(prefix) {
    blocks_ = {.begin = begin, .end = begin + num_tokens / kBlockSize};
    const int first_token = begin * kBlockSize;
    for (int at = 0; at < num_tokens; at += kPageTokens) {
      const int n = std::min(num_tokens - at, kPageTokens);
      // Sinks at the start, recent tokens at the end; the last page ends with the planes' tokens.
      const int head = first_token + at == 0 ? std::min(n, kNumSinkTokens) : 0;
      const int tail = std::clamp(at + n - (num_tokens - kNumRecentTokens), 0, n - head);
      for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
        for (int kv_head = 0; kv_head < c.num_kv_heads; ++kv_head) {
          AddPage({kind, c.head_dim, n, head, tail}, begin + at / kBlockSize, kv_head);
        }
      }
    }
  }

  const AttentionSequence& sequence() const { return sequence_; }
  const PlaneBlocks& blocks() const { return blocks_; }
  const std::vector<PlanePage>& pages() const { return pages_; }

 private:
  Bf16* Tile(int block, KvKind kind, int kv_head) const {
    return reinterpret_cast<Bf16*>(
        sequence_.pool().tile(sequence_.table()[block], 1, kind, kv_head));
  }

  void AddPage(const PageShape& shape, int first_block, int kv_head) {
    cpu::TestPage page(shape);
    for (int t = 0; t < shape.num_blocks() * kBlockSize; ++t) {
      for (int ch = 0; ch < shape.head_dim; ++ch)
        page.at(ch, t) = Value(shape.kind, first_block, kv_head, ch, t);
    }
    const cpu::Planes planes = cpu::EncodePage(cpu::kPlaneBlockRef, page);
    const int num_planes = shape.kind == KvKind::kKey ? prefix_.key_planes : prefix_.value_planes;
    ASSERT_TRUE(cpu::DecodePage(cpu::kPlaneBlockRef, planes, num_planes, page));
    for (int t = 0; t < shape.num_tokens; ++t) {
      for (int ch = 0; ch < shape.head_dim; ++ch) {
        Tile(first_block + t / kBlockSize, shape.kind,
             kv_head)[TileElement(shape.kind, shape.head_dim, ch, t % kBlockSize)] = page.at(ch, t);
      }
    }
    PlanePage device_page = {.plane0_bytes = static_cast<uint32_t>(planes[0].size()),
                             .num_planes = static_cast<int16_t>(num_planes),
                             .num_tokens = static_cast<int16_t>(shape.num_tokens),
                             .num_protected_head = static_cast<int16_t>(shape.num_protected_head),
                             .num_protected_tail = static_cast<int16_t>(shape.num_protected_tail)};
    for (int p = 0; p < num_planes; ++p) {
      if (planes[p].empty()) continue;
      device_page.planes[p] = planes_.emplace_back(planes[p]).data();
    }
    pages_.push_back(device_page);
  }

  // What the pool holds, but two channels have values that no code can say: their groups are raw.
  // Keys only in the last of several KV heads, because such scores drown all others.
  Bf16 Value(KvKind kind, int first_block, int kv_head, int channel, int t) const {
    const Bf16 x =
        Tile(first_block + t / kBlockSize, kind,
             kv_head)[TileElement(kind, sequence_.shape().head_dim, channel, t % kBlockSize)];
    const bool is_large = (channel == 5 && t % 100 == 70) || (channel == 17 && t > 128);
    const bool is_key = kind == KvKind::kKey;
    if (!is_large || (is_key && kv_head == 0)) return x;
    return ToBf16(is_key ? 33000.0f : 40000.0f);
  }

  AttentionSequence sequence_;
  Prefix prefix_;
  PlaneBlocks blocks_;
  std::vector<PlanePage> pages_;
  std::deque<DeviceArray<std::byte>> planes_;
};

class PlaneAttentionTest : public DeviceTest {
 protected:
  using Launcher = void (*)(cudaStream_t, const PlaneAttentionCall&);

  std::vector<float> Run(const PlaneSequence& planes, const std::vector<int>& sizes,
                         std::vector<std::byte> pool_bytes, Launcher launch,
                         AttentionPlanOptions options = {.wide = false}) {
    const AttentionSequence& sequence = planes.sequence();
    const AttentionCase& c = sequence.shape();
    PlannedAttention planned(c, sequence.Groups(sizes), options);
    DeviceArray<std::byte> pool(pool_bytes);
    DeviceArray<float> q(sequence.q()), out(sequence.q().size());
    DeviceArray<PlanePage> pages(planes.pages());
    DeviceArray<PlaneBlocks> blocks(std::vector<PlaneBlocks>(sizes.size(), planes.blocks()));
    launch(stream(), {.attention = {.q = q.data(),
                                    .out = out.data(),
                                    .num_heads = c.num_heads,
                                    .layer = 1,
                                    .scale = c.scale(),
                                    .sliding_window = c.window,
                                    .pool = {.base = pool.data(),
                                             .layout = c.layout(),
                                             .num_blocks = sequence.pool().num_blocks},
                                    .work = planned.work(),
                                    .scratch = planned.scratch()},
                      .blocks = blocks.data(),
                      .pages = pages.data()});
    return out.Download();
  }
  std::vector<float> OverTiles(const PlaneSequence& planes, const std::vector<int>& sizes) {
    return Run(planes, sizes, planes.sequence().PoolBytes(),
               [](cudaStream_t stream, const PlaneAttentionCall& call) {
                 Attention(stream, call.attention);
               });
  }
  // The pool's own tiles of the blocks in planes are garbage.
  std::vector<float> OverPlanes(PlaneSequence& planes, const std::vector<int>& sizes,
                                AttentionPlanOptions options = {.wide = false}) {
    std::vector<std::byte> pool = planes.sequence().PoolBytes();
    const size_t block_bytes = planes.sequence().shape().layout().block_bytes();
    for (int b = planes.blocks().begin; b < planes.blocks().end; ++b) {
      std::fill_n(pool.begin() + planes.sequence().table()[b] * block_bytes, block_bytes,
                  std::byte{0x41});
    }
    return Run(planes, sizes, pool, PlaneAttention, options);
  }
};

TEST_F(PlaneAttentionTest, EqualsAttentionOverDecodedTiles) {
  for (const int head_dim : {64, 96, 128, 256}) {
    if (!HasPlaneAttention(head_dim)) continue;
    for (const PlaneSequence::Prefix prefix :
         {PlaneSequence::Prefix{1, 2}, {3, 1}, {2, 3}, {4, 4}}) {
      // The last page ends inside a block, which like the drafts behind it is read from the pool.
      PlaneSequence planes({.head_dim = head_dim,
                            .num_heads = 4,
                            .num_kv_heads = 2,
                            .num_tokens = 400,
                            .num_rows = 3},
                           0, 390, prefix);
      EXPECT_TRUE(SameBits(OverPlanes(planes, {3}), OverTiles(planes, {3})))
          << "head_dim " << head_dim << ", planes " << prefix.key_planes << ", "
          << prefix.value_planes;
    }
  }
}

TEST_F(PlaneAttentionTest, PagesBehindAPrefixInTheWindow) {
  PlaneSequence planes({.window = 470, .num_tokens = 700, .num_rows = 8}, 3, 448, {3, 2});
  EXPECT_TRUE(SameBits(OverPlanes(planes, {8}), OverTiles(planes, {8})));
}

TEST_F(PlaneAttentionTest, RowsDoNotDependOnTheirGroupOrTheSchedule) {
  PlaneSequence planes({.num_tokens = 1090, .num_rows = 12}, 0, 1024, {3, 1});
  const std::vector<float> want = OverPlanes(planes, {12});
  EXPECT_TRUE(SameBits(OverPlanes(planes, {12}, {.wide = false, .split = false}), want));
  EXPECT_TRUE(SameBits(OverPlanes(planes, std::vector<int>(12, 1)), want));
  EXPECT_TRUE(SameBits(OverPlanes(planes, {5, 7}), want));
}

}  // namespace
}  // namespace lynx::cuda
