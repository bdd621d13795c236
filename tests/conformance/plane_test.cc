// SPDX-License-Identifier: Apache-2.0
// The plane kernels: the bytes and bits of the CPU's scalar reference, and its refusals.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/plane_decode.h"
#include "kernels/cuda/plane_encode.h"
#include "tests/conformance/device.h"
#include "tests/kernels_cpu/plane_pages.h"

namespace lynx::cuda {
namespace {

using cpu::Planes;
using cpu::TestPage;

const cpu::PlaneBlockKernels& Reference() {
  return cpu::PlaneBlockKernelsFor(cpu::Target::kScalar);
}

// Rounded up, so that every array that is cut from one begins at 16 bytes.
size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

class PlaneTest : public DeviceTest {
 protected:
  // Device copies of pages' tiles.
  struct DevicePages {
    explicit DevicePages(const std::vector<TestPage>& pages) : tiles(AllTiles(pages)) {
      size_t end = 0;
      for (const TestPage& page : pages) {
        begin.push_back(end);
        end += page.shape().num_blocks() * TileSize(page.shape());
      }
    }
    Bf16* tile(size_t page, const PageShape& shape, int block) const {
      return tiles.data() + begin[page] + block * TileSize(shape);
    }
    DeviceArray<Bf16> tiles;
    std::vector<size_t> begin;
  };

  static size_t TileSize(const PageShape& shape) { return size_t{kBlockSize} * shape.head_dim; }
  static std::vector<Bf16> AllTiles(const std::vector<TestPage>& pages) {
    std::vector<Bf16> elements;
    for (const TestPage& page : pages) {
      for (int b = 0; b < page.shape().num_blocks(); ++b) {
        const Bf16* tile = page.tiles()[b];
        elements.insert(elements.end(), tile, tile + TileSize(page.shape()));
      }
    }
    return elements;
  }

  std::vector<Planes> Encode(const std::vector<TestPage>& pages, bool exact = true) {
    const DevicePages device(pages);
    std::vector<PlaneEncodePage> list(pages.size());
    std::vector<std::array<size_t, kNumPlanes>> at(pages.size());
    size_t room = 0;
    for (size_t i = 0; i < pages.size(); ++i) {
      const PlaneLayout layout(pages[i].shape());
      for (int p = 0; p < kNumPlanes; ++p) {
        at[i][p] = room;
        room += Aligned(layout.max_plane_bytes(p));
      }
    }
    const DeviceArray<std::byte> planes(room);
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageShape& shape = pages[i].shape();
      list[i].shape = shape;
      for (int b = 0; b < shape.num_blocks(); ++b) {
        list[i].tiles[b] = device.tile(i, shape, b);
      }
      for (int p = 0; p < (exact ? kNumPlanes : kExactPlane); ++p) {
        list[i].planes[p] = planes.data() + at[i][p];
      }
    }
    const DeviceArray<PlaneEncodePage> device_list(list);
    const DeviceArray<uint32_t> bytes(pages.size() * kNumPlanes);
    PlaneEncode(stream(), device_list.data(), static_cast<int>(pages.size()), bytes.data());
    const std::vector<uint32_t> sizes = bytes.Download();
    const std::vector<std::byte> all = planes.Download();
    std::vector<Planes> result(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int p = 0; p < kNumPlanes; ++p) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(at[i][p]);
        result[i][p].assign(from, from + sizes[i * kNumPlanes + p]);
      }
    }
    return result;
  }

  // Decodes over what the pages hold.
  std::vector<bool> Decode(const std::vector<Planes>& planes, int num_planes,
                           std::vector<TestPage>& pages) {
    const DevicePages device(pages);
    std::vector<std::byte> bytes;
    std::vector<std::array<size_t, kNumPlanes>> at(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int p = 0; p < num_planes; ++p) {
        at[i][p] = bytes.size();
        bytes.insert(bytes.end(), planes[i][p].begin(), planes[i][p].end());
        bytes.resize(Aligned(bytes.size()));
      }
    }
    bytes.resize(bytes.size() + 16);
    const DeviceArray<std::byte> device_bytes(bytes);
    std::vector<PlaneDecodePage> list(pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageShape& shape = pages[i].shape();
      list[i].shape = shape;
      list[i].num_planes = num_planes;
      for (int b = 0; b < shape.num_blocks(); ++b) {
        list[i].tiles[b] = device.tile(i, shape, b);
      }
      for (int p = 0; p < num_planes; ++p) {
        list[i].planes[p] = device_bytes.data() + at[i][p];
        list[i].plane_bytes[p] = static_cast<uint32_t>(planes[i][p].size());
      }
    }
    const DeviceArray<PlaneDecodePage> device_list(list);
    const DeviceArray<uint8_t> ok(pages.size());
    PlaneDecode(stream(), device_list.data(), static_cast<int>(pages.size()), ok.data());
    const std::vector<uint8_t> flags = ok.Download();
    const std::vector<Bf16> elements = device.tiles.Download();
    for (size_t i = 0; i < pages.size(); ++i) {
      const PageShape& shape = pages[i].shape();
      const size_t size = TileSize(shape);
      for (int b = 0; b < shape.num_blocks(); ++b) {
        std::copy_n(elements.begin() + static_cast<std::ptrdiff_t>(device.begin[i] + b * size),
                    size, pages[i].mutable_tiles()[b]);
      }
    }
    return {flags.begin(), flags.end()};
  }

  // Bytes, every prefix decoded in place over the last, and the values back.
  void CheckAgainstCpu(const std::vector<TestPage>& pages) {
    std::vector<Planes> want;
    for (const TestPage& page : pages) want.push_back(cpu::EncodePage(Reference(), page));
    const std::vector<Planes> planes = Encode(pages);
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int p = 0; p < kNumPlanes; ++p) {
        ASSERT_EQ(planes[i][p], want[i][p]) << "page " << i << " plane " << p;
      }
    }
    std::vector<TestPage> decoded = pages, host = pages;
    for (size_t i = 0; i < pages.size(); ++i) {
      const auto seven = [](int, int) { return ToBf16(7.0f); };
      decoded[i].FillSlots(seven);
      host[i].FillSlots(seven);
    }
    for (int n = 1; n <= kNumPlanes; ++n) {
      const std::vector<bool> ok = Decode(want, n, decoded);
      for (size_t i = 0; i < pages.size(); ++i) {
        ASSERT_TRUE(ok[i]) << "page " << i << ", " << n << " planes";
        ASSERT_TRUE(cpu::DecodePage(Reference(), want[i], n, host[i]));
        ASSERT_TRUE(decoded[i] == host[i]) << "page " << i << ", " << n << " planes";
      }
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int t = 0; t < pages[i].shape().num_tokens; ++t) {
        for (int c = 0; c < pages[i].shape().head_dim; ++c) {
          ASSERT_EQ(decoded[i].at(c, t), pages[i].at(c, t)) << i << ": " << c << ", " << t;
        }
      }
    }
  }

  static TestPage CacheLikePage(const PageShape& shape, uint32_t seed) {
    std::mt19937 rng(seed);
    TestPage page(shape);
    page.FillSlots([&](int c, int t) { return cpu::CacheLikeValue(rng, c, t); });
    return page;
  }
};

// 64 neighbours a group, and far apart ones: all of Inf and NaN, raw groups, constant groups.
TEST_F(PlaneTest, EveryPattern) {
  constexpr int kHeadDim = 64;
  std::vector<TestPage> pages;
  for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (int part = 0; part < 4; ++part) {
      const PageShape shape{.kind = kind, .head_dim = kHeadDim, .num_tokens = kPageTokens};
      const auto bits = [=](int c, int t) { return part << 14 | c << 8 | t; };
      pages.emplace_back(shape).FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(bits(c, t))}; });
      pages.emplace_back(shape).FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(bits(c, t) * 40503)}; });
    }
    pages.emplace_back(PageShape{.kind = kind, .head_dim = kHeadDim, .num_tokens = kPageTokens})
        .FillSlots([](int c, int) { return Bf16{static_cast<uint16_t>(c * 1023)}; });
  }
  CheckAgainstCpu(pages);
}

TEST_F(PlaneTest, EveryTail) {
  std::vector<TestPage> pages;
  for (int tokens = 1; tokens <= kPageTokens; ++tokens) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const PageShape shape{
          .kind = kind,
          .head_dim = 16,
          .num_tokens = tokens,
          .num_protected_head = tokens % 3 == 0 ? std::min(tokens, 16) : 0,
          .num_protected_tail = tokens % 2 == 0 ? std::max(0, tokens - 16) % 70 : 0};
      pages.push_back(CacheLikePage(shape, tokens));
    }
  }
  CheckAgainstCpu(pages);
}

TEST_F(PlaneTest, EveryHeadDim) {
  std::vector<TestPage> pages;
  for (int head_dim = 16; head_dim <= kMaxHeadDim; head_dim += 16) {
    for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      const PageShape shape{.kind = kind,
                            .head_dim = head_dim,
                            .num_tokens = head_dim % 32 == 0 ? 256 : 190,
                            .num_protected_head = 16,
                            .num_protected_tail = head_dim % 48 == 0 ? 100 : 0};
      TestPage page = CacheLikePage(shape, head_dim);
      page.at(3, 100) = Bf16{0x7f80};  // a raw group, and a NaN in another
      page.at(head_dim - 1, 70) = Bf16{0x7fc1};
      pages.push_back(page);
    }
  }
  CheckAgainstCpu(pages);
}

// Live tokens that begin and end anywhere in a block, or nowhere.
TEST_F(PlaneTest, EveryKindOfProtection) {
  std::vector<TestPage> pages;
  for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (const int tokens : {1, 64, 100, 256}) {
      for (const int head : {0, 1, 15, 16, 63, 64, 65, 130, 255, 256}) {
        for (const int tail : {0, 1, 17, 63, 64, 80, 128, 255}) {
          if (head + tail > tokens) continue;
          const PageShape shape{.kind = kind,
                                .head_dim = 48,
                                .num_tokens = tokens,
                                .num_protected_head = head,
                                .num_protected_tail = tail};
          pages.push_back(CacheLikePage(shape, static_cast<uint32_t>(head * 256 + tail)));
          if (head + tail < tokens) pages.back().at(29, head) = Bf16{0xff80};  // a raw group
        }
      }
    }
  }
  CheckAgainstCpu(pages);
}

TEST_F(PlaneTest, ManySpansAndOutliers) {
  std::mt19937 rng(7);
  std::vector<TestPage> pages;
  for (int i = 0; i < 60; ++i) {
    TestPage& page = pages.emplace_back(PageShape{.kind = KvKind(i % 2),
                                                  .head_dim = 16 * (1 + i % 6),
                                                  .num_tokens = 1 + static_cast<int>(rng() % 256)});
    const auto span = static_cast<uint16_t>(1u << rng() % 16);
    const auto base = static_cast<uint16_t>(rng());
    page.FillSlots([&](int c, int) {
      if (rng() % 500 == 0) return Bf16{static_cast<uint16_t>(rng())};
      return Bf16{static_cast<uint16_t>(base + c * 37 + rng() % span)};
    });
  }
  CheckAgainstCpu(pages);
}

TEST_F(PlaneTest, APageDoesNotDependOnItsCompany) {
  std::vector<TestPage> pages;
  for (int i = 0; i < 12; ++i) {
    pages.push_back(CacheLikePage({.kind = KvKind(i % 2),
                                   .head_dim = i % 3 == 0 ? 128 : 64,
                                   .num_tokens = 256 - i * 20,
                                   .num_protected_head = i == 0 ? 16 : 0,
                                   .num_protected_tail = i % 4 == 3 ? 30 : 0},
                                  static_cast<uint32_t>(i)));
  }
  const std::vector<Planes> together = Encode(pages);
  std::vector<TestPage> decoded_together = pages;
  Decode(together, 3, decoded_together);
  for (size_t i = 0; i < pages.size(); ++i) {
    const std::vector<Planes> alone = Encode({pages[i]});
    EXPECT_EQ(alone[0], together[i]) << i;
    std::vector<TestPage> decoded = {pages[i]};
    Decode(alone, 3, decoded);
    EXPECT_TRUE(decoded[0] == decoded_together[i]) << i;
  }
}

TEST_F(PlaneTest, TheExactPlaneMayBeLeftOut) {
  const std::vector<TestPage> pages = {
      CacheLikePage({.kind = KvKind::kKey, .head_dim = 32, .num_tokens = 200}, 1)};
  const Planes want = cpu::EncodePage(Reference(), pages[0]);
  const Planes got = Encode(pages, /*exact=*/false)[0];
  for (int p = 0; p < kExactPlane; ++p) EXPECT_EQ(got[p], want[p]) << p;
  EXPECT_TRUE(got[kExactPlane].empty());
}

class PlaneDamageTest : public PlaneTest, public testing::WithParamInterface<KvKind> {};

// Damaged metadata, sizes, lengths and streams: what the CPU refuses, and nothing else; a page that
// is refused reads as zeros and its neighbours as ever.
TEST_P(PlaneDamageTest, RefusesWhatTheCpuRefuses) {
  const PageShape shape{.kind = GetParam(),
                        .head_dim = 16,
                        .num_tokens = 150,
                        .num_protected_head = 16,
                        .num_protected_tail = 20};
  TestPage page = CacheLikePage(shape, 5);
  page.at(2, 40) = Bf16{0x7f80};
  const Planes planes = cpu::EncodePage(Reference(), page);
  std::mt19937 rng(9);
  std::vector<Planes> damaged = {planes};
  for (int i = 0; i < 160; ++i) {
    Planes& d = damaged.emplace_back(planes);
    const int p = std::array{0, 0, kExactPlane, kExactPlane, 1, 3}[rng() % 6];
    const size_t metadata = p == 0 ? PlaneLayout(shape).codes_offset() : size_t{16};
    switch (i % 4) {
      case 0:
        d[p][rng() % std::min(metadata, d[p].size())] ^= std::byte(1 + rng() % 255);
        break;
      case 1:
        d[p][rng() % d[p].size()] ^= std::byte(1 + rng() % 255);
        break;
      case 2:
        d[p].resize(rng() % d[p].size());
        break;
      case 3:
        d[p].resize(d[p].size() + 1 + rng() % 40, std::byte(rng() % 256));
        break;
    }
  }
  for (int n = 1; n <= kNumPlanes; ++n) {
    std::vector<TestPage> pages(damaged.size(), TestPage(shape));
    const std::vector<bool> ok = Decode(damaged, n, pages);
    int num_refused = 0;
    for (size_t i = 0; i < damaged.size(); ++i) {
      TestPage host(shape);
      ASSERT_EQ(ok[i], cpu::DecodePage(Reference(), damaged[i], n, host)) << i << ", " << n;
      if (!ok[i]) host = TestPage(shape);
      EXPECT_TRUE(pages[i] == host) << i << ", " << n;
      num_refused += ok[i] ? 0 : 1;
    }
    EXPECT_TRUE(ok[0]);
    EXPECT_GT(num_refused, n == kNumPlanes ? 75 : 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PlaneDamageTest, testing::Values(KvKind::kKey, KvKind::kValue));

}  // namespace
}  // namespace lynx::cuda
