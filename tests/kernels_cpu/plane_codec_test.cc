// SPDX-License-Identifier: Apache-2.0
// The plane format on the scalar kernels: what comes back, at every prefix, for every input.
#include <gtest/gtest.h>

#include "tests/kernels_cpu/plane_pages.h"

namespace lynx::cpu {
namespace {

constexpr KvKind kKinds[] = {KvKind::kKey, KvKind::kValue};
constexpr Bf16 kUntouched{0x4242};

// Encodes the page, decodes all planes and expects every bit of its tokens, and no other slot,
// back.
void ExpectExact(const TestPage& page) {
  const Planes planes = EncodePage(kPlaneBlockRef, page);
  const PlaneLayout layout(page.shape());
  for (int p = 0; p < kNumPlanes; ++p) EXPECT_LE(planes[p].size(), layout.max_plane_bytes(p));
  TestPage decoded(page.shape());
  decoded.FillSlots([](int, int) { return kUntouched; });
  ASSERT_TRUE(DecodePage(kPlaneBlockRef, planes, kNumPlanes, decoded));
  int num_wrong = 0;
  for (int t = 0; t < page.shape().num_blocks() * kBlockSize; ++t) {
    for (int c = 0; c < page.shape().head_dim; ++c) {
      const Bf16 want = t < page.shape().num_tokens ? page.at(c, t) : kUntouched;
      if (decoded.at(c, t) == want) continue;
      if (++num_wrong == 1) {
        ADD_FAILURE() << "channel " << c << " token " << t << ": " << std::hex
                      << decoded.at(c, t).bits << ", want " << want.bits;
      }
    }
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST(PlaneCodec, EveryTailComesBackExactly) {
  std::mt19937 rng(1);
  for (const KvKind kind : kKinds) {
    for (int n = 1; n <= kPageTokens; ++n) {
      const int head = n % 3 == 0 ? std::min(n, 16) : 0;
      const int tail = n % 2 == 0 ? std::min(n - head, 64) : 0;
      TestPage page({kind, 16, n, head, tail});
      page.FillSlots([&](int c, int t) { return CacheLikeValue(rng, c, t); });
      ExpectExact(page);
    }
  }
}

// All 65536 patterns, 256 to a page channel, in the order of their bits: narrow groups, subnormal
// ones, groups that span both zeros, groups with Inf and NaN.
TEST(PlaneCodec, EveryPatternInNarrowGroups) {
  for (const KvKind kind : kKinds) {
    for (int first = 0; first < 65536; first += 16 * kPageTokens) {
      TestPage page({kind, 16, kPageTokens, 0, 0});
      page.FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(first + c * kPageTokens + t)}; });
      ExpectExact(page);
    }
  }
}

// All patterns spread so that every group spans the whole range of the finite patterns below the
// raw limit, or holds special values.
TEST(PlaneCodec, EveryPatternInWideGroups) {
  for (const KvKind kind : kKinds) {
    for (int page_index = 0; page_index < 16; ++page_index) {
      TestPage page({kind, 16, kPageTokens, 0, 0});
      page.FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(t * 256 + c * 16 + page_index)}; });
      ExpectExact(page);
      // The same without what is sent raw.
      page.FillSlots([&](int c, int t) {
        const uint16_t bits = static_cast<uint16_t>(t * 256 + c * 16 + page_index);
        return (bits & 0x7fff) < 0x4700 ? Bf16{bits} : Bf16{static_cast<uint16_t>(bits & 0x80ff)};
      });
      ExpectExact(page);
    }
  }
}

TEST(PlaneCodec, ConstantGroupsAndEveryConstant) {
  for (int first = 0; first < 65536; first += 256) {
    TestPage page({KvKind::kValue, 256, 64, 0, 0});
    page.FillSlots([&](int c, int) { return Bf16{static_cast<uint16_t>(first + c)}; });
    ExpectExact(page);
  }
}

// Two neighbouring values: the narrowest page that is not constant.
TEST(PlaneCodec, EveryPairOfNeighbours) {
  for (int first = 0; first < 65536; first += 256) {
    TestPage page({KvKind::kKey, 256, 128, 0, 0});
    page.FillSlots([&](int c, int t) {
      return FromOrderedKey(static_cast<int16_t>(first + c - 32768) + (t * 7 % 5 == 1));
    });
    ExpectExact(page);
  }
}

TEST(PlaneCodec, RandomPatternsAndOutliers) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 40; ++trial) {
    TestPage page(
        {kKinds[trial % 2], 16 * (1 + trial % 6), 1 + static_cast<int>(rng() % 256), 0, 0});
    const uint16_t span = static_cast<uint16_t>(1u << (rng() % 16));
    const uint16_t base = static_cast<uint16_t>(rng());
    page.FillSlots([&](int c, int) {
      if (rng() % 500 == 0) return Bf16{static_cast<uint16_t>(rng())};
      return Bf16{static_cast<uint16_t>(base + c * 37 + rng() % span)};
    });
    ExpectExact(page);
  }
}

// Every prefix decodes to within half a cell of its width, plus the rounding to BF16.
TEST(PlaneCodec, EveryPrefixIsWithinHalfItsCell) {
  std::mt19937 rng(3);
  constexpr int kBits[] = {2, 3, 4, 8};
  for (const KvKind kind : kKinds) {
    for (const int n : {256, 200, 70}) {
      TestPage page({kind, 64, n, 16, 30});
      page.FillSlots([&](int c, int t) { return CacheLikeValue(rng, c, t); });
      const Planes planes = EncodePage(kPlaneBlockRef, page);
      for (int p = 0; p < 4; ++p) {
        TestPage decoded(page.shape());
        ASSERT_TRUE(DecodePage(kPlaneBlockRef, planes, p + 1, decoded));
        for (int c = 0; c < 64; ++c) {
          for (int b = 0; b < page.shape().num_blocks(); ++b) {
            float lo = INFINITY, hi = -INFINITY, channel_lo = INFINITY, channel_hi = -INFINITY;
            for (int t = 0; t < n; ++t) {
              if (!page.live(t)) {
                EXPECT_EQ(decoded.at(c, t), page.at(c, t));
                continue;
              }
              const float x = ToFloat(page.at(c, t));
              channel_lo = std::min(channel_lo, x);
              channel_hi = std::max(channel_hi, x);
              if (t / kBlockSize != b) continue;
              lo = std::min(lo, x);
              hi = std::max(hi, x);
            }
            // Outward rounding of the two-level metadata: at most two units of the page.
            const float range = std::max(channel_hi - channel_lo,
                                         std::max(std::abs(channel_lo), std::abs(channel_hi)) / 64);
            const float width = hi - lo + 2.1f * range / 256;
            for (int t = b * kBlockSize; t < std::min((b + 1) * kBlockSize, n); ++t) {
              if (!page.live(t)) continue;
              const float x = ToFloat(page.at(c, t)), y = ToFloat(decoded.at(c, t));
              const float half_cell = width / static_cast<float>(2 << kBits[p]);
              EXPECT_LE(std::abs(x - y), half_cell + std::abs(y) / 256) << c << " " << t;
            }
          }
        }
      }
    }
  }
}

// Bytes that no encoder wrote: sizes, metadata and streams are damaged in turn. The decoder may
// accept what it cannot tell apart, but stays inside its buffers (which ASan watches).
TEST(PlaneCodec, DamagedBytesAreSafe) {
  std::mt19937 rng(11);
  int num_refused = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const int n = 1 + static_cast<int>(rng() % 256);
    const int head = static_cast<int>(rng() % 3) == 0 ? std::min(n, 16) : 0;
    TestPage page({kKinds[trial % 2], 16, n, head, 0});
    page.FillSlots([&](int c, int t) { return CacheLikeValue(rng, c, t); });
    Planes planes = EncodePage(kPlaneBlockRef, page);
    const int victim = static_cast<int>(rng() % kNumPlanes);
    auto& bytes = planes[victim];
    switch (trial % 4) {
      case 0:
        bytes.resize(bytes.empty() ? 0 : rng() % bytes.size());
        break;
      case 1:
        bytes.resize(bytes.size() + 1 + rng() % 9);
        break;
      case 2:
        for (auto& b : bytes) b = std::byte(rng());
        break;
      default:
        if (!bytes.empty())
          bytes[rng() % std::min<size_t>(bytes.size(), 96)] ^= std::byte(1 + rng() % 255);
    }
    bytes.shrink_to_fit();
    for (int p = 1; p <= kNumPlanes; ++p) {
      TestPage decoded(page.shape());
      num_refused += !DecodePage(kPlaneBlockRef, planes, p, decoded);
    }
  }
  EXPECT_GT(num_refused, 1000);
}

// Every index has a code, and every code of a cell is that of one of its indices.
TEST(PlaneCodec, IndexCodesAreTruncatedBinary) {
  for (int count = 1; count < 0x9000; count += count < 300 ? 1 : 997) {
    const Cell cell{0, count};
    const uint32_t num_short = cell.num_short();
    uint32_t next = 0;
    for (uint32_t bits = 0; bits < 1u << cell.index_bits(); ++bits) {
      const bool has_extra = bits >= num_short;
      for (uint32_t extra = 0; extra <= (has_extra ? 1 : 0); ++extra, ++next) {
        ASSERT_EQ(IndexOfCode(bits, extra, num_short), next) << count;
        const IndexCode code = CodeOfIndex(next, num_short);
        ASSERT_EQ(code.bits, bits);
        ASSERT_EQ(code.has_extra, has_extra);
        ASSERT_EQ(code.extra, extra);
      }
    }
    ASSERT_EQ(next, static_cast<uint32_t>(count));
  }
}

// Bits per element, metadata included, on data like a cache's.
TEST(PlaneCodec, BitsPerElementOnCacheLikeData) {
  std::mt19937 rng(5);
  for (const KvKind kind : kKinds) {
    TestPage page({kind, 64, kPageTokens, 0, 0});
    page.FillSlots([&](int c, int t) { return CacheLikeValue(rng, c, t); });
    const Planes planes = EncodePage(kPlaneBlockRef, page);
    double bits[kNumPlanes], total = 0;
    for (int p = 0; p < kNumPlanes; ++p) {
      bits[p] = 8.0 * static_cast<double>(planes[p].size()) / (64 * kPageTokens);
      total += bits[p];
    }
    EXPECT_DOUBLE_EQ(bits[0], 2.375);
    EXPECT_DOUBLE_EQ(bits[1], 1);
    EXPECT_DOUBLE_EQ(bits[2], 1);
    EXPECT_DOUBLE_EQ(bits[3], 4);
    EXPECT_LE(total, 11.1);
    RecordProperty(kind == KvKind::kKey ? "key_bits" : "value_bits", std::to_string(total));
    std::printf("%s: %.3f bits per element to exact, %.3f of them in the exact plane\n",
                kind == KvKind::kKey ? "key" : "value", total, bits[kExactPlane]);
  }
}

}  // namespace
}  // namespace lynx::cpu
