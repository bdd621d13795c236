// SPDX-License-Identifier: Apache-2.0
// Every instruction set writes the same planes and reads the same values, bit for bit.
#include <gtest/gtest.h>

#include "kernels/cpu/float_mode.h"
#include "tests/kernels_cpu/plane_pages.h"

namespace lynx::cpu {
namespace {

class PlaneTargets : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!Supports(GetParam())) GTEST_SKIP() << "this processor lacks " << TargetName(GetParam());
  }

  void ExpectSame(const TestPage& page) {
    const PlaneBlockKernels& fast = PlaneBlockKernelsFor(GetParam());
    const Planes want = EncodePage(kPlaneBlockRef, page), have = EncodePage(fast, page);
    for (int p = 0; p < kNumPlanes; ++p) ASSERT_EQ(have[p], want[p]) << "plane " << p;
    for (int p = 1; p <= kNumPlanes; ++p) ExpectSameDecode(want, p, page.shape());
  }

  // Returns whether the planes were accepted.
  bool ExpectSameDecode(const Planes& planes, int num_planes, const PageShape& shape) {
    const PlaneBlockKernels& fast = PlaneBlockKernelsFor(GetParam());
    TestPage want(shape), have(shape);
    const bool ok = DecodePage(kPlaneBlockRef, planes, num_planes, want);
    EXPECT_EQ(DecodePage(fast, planes, num_planes, have), ok);
    if (ok) {
      EXPECT_TRUE(have == want) << num_planes << " planes";
    }
    return ok;
  }

  std::mt19937 rng_{17};
};

TEST_P(PlaneTargets, CacheLikePagesOfEveryShape) {
  for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (const int head_dim : {16, 32, 64, 80, 96, 128, 256}) {
      for (const int n : {1, 31, 64, 65, 130, 256}) {
        for (const int head : {0, 16}) {
          const int h = std::min(head, n), tail = head == 0 ? 0 : std::min(64, n - h);
          TestPage page({kind, head_dim, n, h, tail});
          page.FillSlots([&](int c, int t) { return CacheLikeValue(rng_, c, t); });
          ExpectSame(page);
        }
      }
    }
  }
}

TEST_P(PlaneTargets, EveryPattern) {
  for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (int first = 0; first < 65536; first += 16 * kPageTokens) {
      TestPage narrow({kind, 16, kPageTokens, 0, 0}), wide(narrow.shape());
      narrow.FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(first + c * kPageTokens + t)}; });
      ExpectSame(narrow);
      wide.FillSlots([&](int c, int t) {
        const int bits = t * 256 + c * 16 + first / (16 * kPageTokens);
        return Bf16{static_cast<uint16_t>((bits & 0x7fff) < 0x4700 ? bits : bits & 0x80ff)};
      });
      ExpectSame(wide);
    }
  }
}

TEST_P(PlaneTargets, RandomPatterns) {
  for (int trial = 0; trial < 60; ++trial) {
    TestPage page(
        {KvKind(trial % 2), 16 * (1 + trial % 5), 1 + static_cast<int>(rng_() % 256), 0, 0});
    const auto span = static_cast<uint16_t>(1u << (rng_() % 16));
    const auto base = static_cast<uint16_t>(rng_());
    page.FillSlots([&](int, int) { return Bf16{static_cast<uint16_t>(base + rng_() % span)}; });
    ExpectSame(page);
  }
}

// The plane codec may run on a thread with or without FTZ and DAZ.
TEST_P(PlaneTargets, FlushToZeroChangesNothing) {
  for (const KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (int first = 0; first < 65536; first += 16 * kPageTokens) {
      TestPage page({kind, 16, kPageTokens, 0, 0}), decoded(page.shape());
      page.FillSlots(
          [&](int c, int t) { return Bf16{static_cast<uint16_t>(first + c * kPageTokens + t)}; });
      const PlaneBlockKernels& kernels = PlaneBlockKernelsFor(GetParam());
      const Planes want = EncodePage(kernels, page);
      Planes have;
      {
        ScopedFlushToZero flush;
        have = EncodePage(kernels, page);
        EXPECT_TRUE(DecodePage(kernels, want, kNumPlanes, decoded));
      }
      EXPECT_EQ(have, want);
      EXPECT_TRUE(decoded == page);
    }
  }
}

TEST_P(PlaneTargets, DamagedBytes) {
  int num_accepted = 0;
  for (int trial = 0; trial < 600; ++trial) {
    TestPage page({KvKind(trial % 2), 16, 1 + static_cast<int>(rng_() % 256), 0, 0});
    page.FillSlots([&](int c, int t) { return CacheLikeValue(rng_, c, t); });
    Planes planes = EncodePage(kPlaneBlockRef, page);
    auto& bytes = planes[rng_() % kNumPlanes];
    if (trial % 3 == 0) {
      for (auto& b : bytes) b = std::byte(rng_());
    } else if (!bytes.empty()) {
      bytes[rng_() % bytes.size()] ^= std::byte(1 + rng_() % 255);
    }
    bytes.shrink_to_fit();
    for (int p = 1; p <= kNumPlanes; ++p) num_accepted += ExpectSameDecode(planes, p, page.shape());
  }
  EXPECT_GT(num_accepted, 600);
}

INSTANTIATE_TEST_SUITE_P(All, PlaneTargets,
                         ::testing::Values(Target::kScalar, Target::kAvx2, Target::kAvx512),
                         [](const auto& info) { return std::string(TargetName(info.param)); });

}  // namespace
}  // namespace lynx::cpu
