// SPDX-License-Identifier: Apache-2.0
// Golden bytes: the plane format cannot drift unnoticed. The first page is the worked example of
// docs/plane_format.md.
#include <gtest/gtest.h>

#include <string>

#include "tests/hex.h"
#include "tests/kernels_cpu/plane_pages.h"

namespace lynx::cpu {
namespace {

// A plane's bytes in order, as the document lists them.
class PlaneReader {
 public:
  explicit PlaneReader(std::span<const std::byte> plane) : rest_(plane) {}
  std::string Next(size_t bytes) {
    if (bytes > rest_.size()) return "too short";
    const std::string hex = Hex(rest_.first(bytes));
    rest_ = rest_.subspan(bytes);
    return hex;
  }
  // Everything left is zero, and is so many bytes.
  void ExpectZeros(size_t bytes) { EXPECT_EQ(Hex(rest_), std::string(2 * bytes, '0')); }

 private:
  std::span<const std::byte> rest_;
};

std::string Repeat(const std::string& hex, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += hex;
  return all;
}

uint64_t Fnv1a(const Planes& planes) {
  uint64_t hash = 14695981039346656037u;
  for (const auto& plane : planes) {
    for (const std::byte b : plane) hash = (hash ^ std::to_integer<uint64_t>(b)) * 1099511628211u;
    hash = (hash ^ plane.size()) * 1099511628211u;
  }
  return hash;
}

TEST(PlaneGolden, WorkedExample) {
  TestPage page({KvKind::kValue, 16, 4, 0, 1});
  page.FillSlots([](int c, int t) {
    if (c == 15 && t == 1) return Bf16{0x7f80};  // Inf
    return ToBf16(static_cast<float>(c) + 0.5f * static_cast<float>(t));
  });
  const Planes planes = EncodePage(kPlaneBlockRef, page);

  PlaneReader anchor(planes[0]);
  EXPECT_EQ(anchor.Next(32), "0000003c0040004200440045004600470048804800498049004a804a004b0000");
  EXPECT_EQ(anchor.Next(32), Repeat("013c", 15) + "0000");
  EXPECT_EQ(anchor.Next(16), Repeat("00", 15) + "ff");
  EXPECT_EQ(anchor.Next(16), Repeat("ff", 15) + "00");
  EXPECT_EQ(anchor.Next(64), Repeat("34000000", 15) + "00000000");
  EXPECT_EQ(anchor.Next(192), Repeat("00000000", 48));
  EXPECT_EQ(anchor.Next(32),
            "c03f204060409040b040d040f0400841184128413841484158416841784184"
            "41");
  EXPECT_EQ(anchor.Next(6), "7041807f8041");
  anchor.ExpectZeros(0);
  for (const int p : {1, 2}) {
    PlaneReader bit(planes[p]);
    EXPECT_EQ(bit.Next(64), Repeat("14000000", 15) + "00000000");
    bit.ExpectZeros(64);
  }
  PlaneReader residual(planes[3]);
  EXPECT_EQ(residual.Next(64), Repeat("f0000000", 15) + "00000000");
  EXPECT_EQ(residual.Next(64), Repeat("0f000000", 15) + "00000000");
  residual.ExpectZeros(384);
  PlaneReader exact(planes[4]);
  EXPECT_EQ(exact.Next(4), "01000000");
  EXPECT_EQ(exact.Next(4), "00200000");
  exact.ExpectZeros(8);
}

// Two ordinary pages with protected tokens, raw groups and a partial block.
TEST(PlaneGolden, HashesOfPages) {
  const auto hash = [](KvKind kind) {
    TestPage page({kind, 64, 200, 16, 40});
    uint32_t state = 1;
    page.FillSlots([&](int c, int) {
      state = state * 1664525u + 1013904223u;
      const int32_t noise = static_cast<int32_t>(state) >> 20;  // -2048 .. 2047
      if (state % 1009 == 0) return Bf16{static_cast<uint16_t>(state)};
      return ToBf16(static_cast<float>(noise) * 0x1p-10f + static_cast<float>(c % 7 * (c % 5)));
    });
    return Fnv1a(EncodePage(kPlaneBlockRef, page));
  };
  EXPECT_EQ(hash(KvKind::kKey), 0xfe4e85ea08914da6u);
  EXPECT_EQ(hash(KvKind::kValue), 0xc9393d953033d1d9u);
}

}  // namespace
}  // namespace lynx::cpu
