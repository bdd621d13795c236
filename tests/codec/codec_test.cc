// SPDX-License-Identifier: Apache-2.0
// What every codec of the interface promises, and the golden bytes and errors of the baselines.
#include "lynx/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lynx/plane_format.h"
#include "tests/codec/kv_pages.h"
#include "tests/hex.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CodecTest : public ::testing::Test {
 protected:
  std::unique_ptr<Codec> Make(std::string_view name) {
    auto codec = MakeCodec(name, *backend_);
    EXPECT_TRUE(codec.ok()) << codec.status();
    return std::move(codec).value();
  }
  std::unique_ptr<Backend> backend_ = TestBackend();
};

double NormalizedError(const CodecPage& a, const CodecPage& b) {
  double error = 0, power = 0;
  for (int t = 0; t < a.shape.num_tokens; ++t) {
    for (int c = 0; c < a.shape.head_dim; ++c) {
      const double x = ToFloat(a.at(c, t)), y = ToFloat(b.at(c, t));
      error += (x - y) * (x - y);
      power += x * x;
    }
  }
  return error / power;
}

TEST_F(CodecTest, UnknownNameListsTheKnownOnes) {
  const absl::Status status = MakeCodec("int5", *backend_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("int5"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("planes, bf16, bf16-lossless, int8"));
}

TEST_F(CodecTest, EveryTailOfEveryCodecStaysInItsBoundsAndSlots) {
  for (const std::string_view name : CodecNames()) {
    const auto codec = Make(name);
    EXPECT_EQ(codec->name(), name);
    for (int n = 1; n <= kPageTokens; ++n) {
      CodecPage page({KvKind(n % 2), 16, n, 0, 0});
      page.FillCacheLike(n);
      const CodecPlanes planes = Encode(*codec, page);
      for (size_t p = 0; p < planes.size(); ++p) {
        EXPECT_LE(planes[p].size(), codec->MaxPlaneBytes(page.shape, static_cast<int>(p)));
        CodecPage decoded(page.shape);
        for (auto& tile : decoded.storage) std::fill(tile.begin(), tile.end(), Bf16{0x4242});
        ASSERT_TRUE(Decode(*codec, planes, p + 1, decoded).ok());
        for (int t = n; t < page.shape.num_blocks() * kBlockSize; ++t) {
          for (int c = 0; c < 16; ++c) ASSERT_EQ(decoded.at(c, t).bits, 0x4242) << name << " " << n;
        }
        if (codec->lossless() && p + 1 == planes.size()) {
          EXPECT_EQ(NormalizedError(page, decoded), 0) << name << " " << n;
        }
      }
    }
  }
}

TEST_F(CodecTest, EncodeAppends) {
  for (const std::string_view name : CodecNames()) {
    const auto codec = Make(name);
    CodecPage page({KvKind::kKey, 32, 100, 0, 0});
    page.FillCacheLike(1);
    const CodecPlanes once = Encode(*codec, page);
    CodecPlanes twice = once;
    codec->Encode(page.shape, page.tiles, twice);
    for (size_t p = 0; p < once.size(); ++p) {
      CodecPlanes::value_type want = once[p];
      want.insert(want.end(), once[p].begin(), once[p].end());
      EXPECT_EQ(twice[p], want) << name;
    }
  }
}

// Error and size on cache-like data, in the order that the design's tables have.
TEST_F(CodecTest, EachCodecIsAsGoodAndAsLargeAsStated) {
  struct Case {
    std::string_view name;
    size_t num_planes;
    double bits;
    double max_error;
  };
  const Case cases[] = {{"planes", 1, 2.375, 0.02},      {"planes", 3, 4.375, 1.2e-3},
                        {"planes", 4, 8.375, 1e-5},      {"bf16", 1, 16, 0},
                        {"int8", 1, 8.25, 1e-3},         {"int4", 1, 4.25, 0.2},
                        {"int8-channel", 1, 8.25, 4e-5}, {"fp8", 1, 8.25, 1e-3},
                        {"int4-kivi", 1, 5, 8e-3},       {"paper", 1, 4.625, 4e-3},
                        {"paper", 2, 8.625, 2e-4}};
  for (const Case& c : cases) {
    const auto codec = Make(c.name);
    for (const KvKind kind : kKinds) {
      CodecPage page({kind, 64, kPageTokens, 0, 0}), decoded(page.shape);
      page.FillCacheLike(4);
      const CodecPlanes planes = Encode(*codec, page);
      size_t bytes = 0;
      for (size_t p = 0; p < c.num_planes; ++p) bytes += planes[p].size();
      EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(bytes) / (64 * kPageTokens), c.bits) << c.name;
      ASSERT_TRUE(Decode(*codec, planes, c.num_planes, decoded).ok());
      EXPECT_LE(NormalizedError(page, decoded), c.max_error) << c.name << " " << c.num_planes;
    }
  }
}

TEST_F(CodecTest, SpecialValuesDecodeToFiniteNumbers) {
  const uint16_t specials[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x7f7f, 0xff7f,
                               0x7f80, 0xff80, 0x7fc0, 0xffff, 0x3f80, 0x4700};
  for (const std::string_view name : CodecNames()) {
    const auto codec = Make(name);
    if (codec->lossless()) continue;
    CodecPage page({KvKind::kValue, 16, 40, 0, 0});
    page.Fill([&](int c, int t) { return Bf16{specials[(c * 5 + t) % 12]}; });
    const CodecPlanes planes = Encode(*codec, page);
    for (size_t p = 1; p <= planes.size(); ++p) {
      CodecPage decoded(page.shape);
      ASSERT_TRUE(Decode(*codec, planes, p, decoded).ok());
      for (int t = 0; t < 40; ++t) {
        for (int c = 0; c < 16; ++c) EXPECT_TRUE(std::isfinite(ToFloat(decoded.at(c, t)))) << name;
      }
    }
  }
}

TEST_F(CodecTest, ArbitraryBytesAreSafeAndFailuresLeaveZeros) {
  std::mt19937 rng(3);
  for (const std::string_view name : CodecNames()) {
    const auto codec = Make(name);
    for (int trial = 0; trial < 400; ++trial) {
      CodecPage page({kKinds[trial / 4 % 2], 32, 1 + static_cast<int>(rng() % 256), 0, 0});
      page.FillCacheLike(trial);
      CodecPlanes planes = Encode(*codec, page);
      auto& victim = planes[rng() % planes.size()];
      if (trial % 4 == 0) victim.resize(rng() % (victim.size() + 1));
      if (trial % 4 == 1) victim.resize(victim.size() + 1 + rng() % 9);
      if (trial % 4 == 2) {
        for (auto& b : victim) b = std::byte(rng());
      }
      if (trial % 4 == 3 && !victim.empty()) {
        for (int i = 0; i < 3; ++i) victim[rng() % victim.size()] ^= std::byte(rng());
      }
      victim.shrink_to_fit();
      CodecPage decoded(page.shape);
      decoded.FillCacheLike(1);
      const absl::Status status = Decode(*codec, planes, planes.size(), decoded);
      if (trial % 4 == 1) {
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name;
      }
      if (status.ok()) continue;
      for (int t = 0; t < page.shape.num_tokens; ++t) EXPECT_EQ(decoded.at(7, t).bits, 0);
    }
  }
}

TEST_F(CodecTest, DefaultPlans) {
  const auto planes = Make("planes");
  const SendPlan exact = DefaultSendPlan(*planes, 2, true);
  ASSERT_EQ(exact.num_stages(), 3);
  EXPECT_EQ(exact.plane_end[0], (std::vector<int>{3, 1, 3, 1}));  // K 4 bits, V 2 bits
  EXPECT_EQ(exact.plane_end[1], (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(exact.plane_end[2], (std::vector<int>{5, 5, 5, 5}));
  EXPECT_EQ(DefaultSendPlan(*planes, 2, false).num_stages(), 2);
  const SendPlan paper = DefaultSendPlan(*Make("paper"), 1, true);
  ASSERT_EQ(paper.num_stages(), 2);
  EXPECT_EQ(paper.stage_end(0, 0, KvKind::kValue), 1);
  EXPECT_EQ(DefaultSendPlan(*Make("bf16"), 1, false).num_stages(), 1);
  EXPECT_EQ(DefaultSendPlan(*Make("int4"), 1, true).num_stages(), 1);
}

// One token whose channels run from -7 to 8.
CodecPlanes EncodeRamp(const Codec& codec, int num_tokens) {
  CodecPage page({KvKind::kKey, 16, num_tokens, 0, 0});
  page.Fill([](int c, int t) { return ToBf16(static_cast<float>(c - 7 + 3 * t)); });
  return Encode(codec, page);
}

TEST_F(CodecTest, GoldenBytesOfBf16) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("bf16"), 1)[0]),
            "e0c0c0c0a0c080c040c000c080bf0000803f004040408040a040c040e0400041");
}

TEST_F(CodecTest, GoldenBytesOfInt8) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("int8"), 1)[0]), "813d91a1b1c0d0e0f000102030404f5f6f7f");
}

TEST_F(CodecTest, GoldenBytesOfInt4) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("int4"), 1)[0]), "923f32446587a9cbdcfe");
}

TEST_F(CodecTest, GoldenBytesOfInt8Channel) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("int8-channel"), 3)[0]),
            "623d423d213d013dc23c013d213d423d623d813d913da13db13dc23dd23de23d81b8ee81c10081cd"
            "1981e04081007fc0207fe7337f003f7f12487f204f7f2a557f33597f3a5d7f3f5f7f44627f48647f");
}

TEST_F(CodecTest, GoldenBytesOfFp8) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("fp8"), 1)[0]), "923cfcfbf9f6f3eee600666e7376797b7c7e");
}

TEST_F(CodecTest, GoldenBytesOfInt4Kivi) {
  EXPECT_EQ(Hex(EncodeRamp(*Make("int4-kivi"), 3)[0]),
            "e0c0cd3e700fc0c0cd3e700fa0c0cd3e700f80c0cd3e700f40c0cd3e700f00c0cd3e700f80bfcd3e"
            "700f0000cd3e700f803fcd3e700f0040cd3e700f4040cd3e700f8040cd3e700fa040cd3e700fc040"
            "cd3e700fe040cd3e700f0041cd3e700f");
}

// An anchor token and two others; the last layer, so codes to 7. Two channels have one table.
TEST_F(CodecTest, GoldenBytesOfCachegen) {
  CodecPage page({KvKind::kValue, 16, 3, 0, 0, 5, 6});
  page.Fill([](int c, int t) { return ToBf16(static_cast<float>(c - 7 + t * (c % 5 - 2))); });
  EXPECT_EQ(Hex(Encode(*Make("cachegen"), page)[0]),
            "07813d91a1b1c0d0e0f000102030404f5f6f7f953e133f0402000305050100020606030104070700"
            "10000000000000000000000000000000080000000000040000000000000000000000000000000400"
            "04000000000000000000000000000000080000000000000000000000000000000400000000000400"
            "00000000000000000000000000000800000000000000000000000000000008000000000000000000"
            "000000000000080f3f0220d0661800");
}

// Another libzstd may write another frame, but every one reads this.
TEST_F(CodecTest, GoldenBytesOfBf16Lossless) {
  const auto codec = Make("bf16-lossless");
  const std::string fields =
      "81818181808181818182828282828282e08080c0c000a08000808000c00040800000800020004040"
      "000060002000404010006020200030401040602050003060";
  EXPECT_THAT(Hex(EncodeRamp(*codec, 3)[0]), StartsWith(fields));
  const std::string frame =
      "28b52ffd203081010000000200018100010200020100800001020002010081010002000002010002"
      "0100010100010000010000010000000000";
  CodecPage page({KvKind::kKey, 16, 3, 0, 0});
  ASSERT_TRUE(Decode(*codec, {FromHex(fields + frame)}, 1, page).ok());
  for (int t = 0; t < 3; ++t) {
    for (int c = 0; c < 16; ++c) EXPECT_EQ(ToFloat(page.at(c, t)), c - 7 + 3 * t);
  }
}

TEST_F(CodecTest, GoldenBytesOfPaper) {
  const CodecPlanes planes = EncodeRamp(*Make("paper"), 3);
  EXPECT_EQ(Hex(planes[0]),
            "e0c0c0c0a0c080c040c000c080bf0000803f004040408040a040c040e0400041"
            "80bf0000803f004040408040a040c040e0400041104120413041404150416041"
            "80808080808080808080808080808080"
            "80808080808080808080808080808080"
            "ffffffffffffffff88888888888888887777777777777777");
  EXPECT_EQ(Hex(planes[1]), "000000000000000077777777777777770000000000000000");
}

}  // namespace
}  // namespace lynx
