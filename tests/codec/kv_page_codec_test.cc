// SPDX-License-Identifier: Apache-2.0
#include "codec/kv_page_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/codec/kv_pages.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;
using Stages = std::vector<std::vector<std::byte>>;

// A pool whose blocks hold random cache-like numbers, and a page in scattered blocks of it.
class Pool {
 public:
  Pool(const KvLayout& layout, uint32_t seed) : layout_(layout) {
    bytes_.resize(kNumBlocks * layout.block_bytes());
    std::mt19937 rng(seed);
    std::normal_distribution<float> value(0.1f, 1.0f);
    for (size_t at = 0; at < bytes_.size(); at += layout.element_bytes()) {
      const float x = value(rng);
      const Bf16 rounded = ToBf16(x);
      if (layout.dtype == KvDtype::kF32) {
        std::memcpy(&bytes_[at], &x, sizeof(x));
      } else {
        std::memcpy(&bytes_[at], &rounded, sizeof(rounded));
      }
    }
  }
  KvPoolView view() { return {bytes_.data(), layout_, kNumBlocks}; }

  // Element of the page as its bits.
  uint32_t bits(const KvPage& page, KvKind kind, int head, int channel, int token) {
    const std::byte* tile = view().tile(page.blocks[token / kBlockSize], page.layer, kind, head);
    const size_t e = TileElement(kind, layout_.head_dim, channel, token % kBlockSize);
    uint32_t v = 0;
    std::memcpy(&v, tile + e * layout_.element_bytes(), layout_.element_bytes());
    return v;
  }
  bool operator==(const Pool&) const = default;

 private:
  static constexpr int kNumBlocks = 7;
  KvLayout layout_;
  std::vector<std::byte> bytes_;
};

constexpr BlockId kBlocks[] = {5, 2, 6, 0};

class KvPageCodecTest : public ::testing::Test {
 protected:
  std::unique_ptr<KvPageCodec> Make(std::string_view name, KvDtype dtype, bool exact = true) {
    layout_ = {.num_layers = 2, .num_kv_heads = 3, .head_dim = 32, .dtype = dtype};
    auto codec = MakeCodec(name, *backend_);
    EXPECT_TRUE(codec.ok());
    codec_ = std::move(codec).value();
    auto made = KvPageCodec::Create(*codec_, DefaultSendPlan(*codec_, 2, exact), layout_);
    EXPECT_TRUE(made.ok()) << made.status();
    return std::move(made).value();
  }
  static absl::Status DecodePrefix(const KvPageCodec& codec, const KvPage& page,
                                   const Stages& stages, size_t count, Pool& pool) {
    const std::vector<MemoryView> prefix(stages.begin(), stages.begin() + count);
    return codec.DecodePage(page, prefix, pool.view());
  }

  std::unique_ptr<Backend> backend_ = TestBackend();
  std::unique_ptr<Codec> codec_;
  KvLayout layout_;
};

TEST_F(KvPageCodecTest, LosslessCodecsGiveBackEveryBitOfTheirSlotsOnly) {
  for (const auto dtype : {KvDtype::kBf16, KvDtype::kF32}) {
    for (const char* name : {"planes", "bf16"}) {
      const auto codec = Make(name, dtype);
      for (const int n : {1, 63, 64, 65, 200, 256}) {
        const KvPage page{1, 256, n, kBlocks, 256 + n + 40, 0, 3};
        Pool source(layout_, 1), target(layout_, 2);
        const Pool untouched = target;
        Stages stages(codec->num_stages());
        codec->EncodePage(source.view(), page, stages);
        for (int s = 0; s < codec->num_stages(); ++s) {
          EXPECT_LE(stages[s].size(), codec->MaxStageBytes(page, s));
        }
        ASSERT_TRUE(DecodePrefix(*codec, page, stages, stages.size(), target).ok());
        Pool expected = untouched;
        for (const KvKind kind : kKinds) {
          for (int h = 0; h < 3; ++h) {
            for (int c = 0; c < 32; ++c) {
              for (int t = 0; t < n; ++t) {
                ASSERT_EQ(source.bits(page, kind, h, c, t), target.bits(page, kind, h, c, t));
                const size_t bytes = layout_.element_bytes();
                const size_t at = TileElement(kind, 32, c, t % kBlockSize) * bytes;
                const BlockId block = kBlocks[t / kBlockSize];
                std::memcpy(expected.view().tile(block, 1, kind, h) + at,
                            source.view().tile(block, 1, kind, h) + at, bytes);
              }
            }
          }
        }
        EXPECT_TRUE(target == expected) << name << ": a slot outside the page changed";
      }
    }
  }
}

TEST_F(KvPageCodecTest, APageOfSomeHeadsIsTheirPartOfTheWholePage) {
  for (const auto dtype : {KvDtype::kBf16, KvDtype::kF32}) {
    const auto codec = Make("planes", dtype);
    KvPage page{1, 256, 200, kBlocks, 700, 1, 2};
    Pool source(layout_, 1), target(layout_, 2);
    const Pool untouched = target;
    Stages stages(codec->num_stages());
    codec->EncodePage(source.view(), page, stages);
    for (int s = 0; s < 3; ++s) EXPECT_LE(stages[s].size(), codec->MaxStageBytes(page, s));
    ASSERT_TRUE(DecodePrefix(*codec, page, stages, stages.size(), target).ok());
    Pool before = untouched;
    for (const KvKind kind : kKinds) {
      EXPECT_EQ(target.bits(page, kind, 0, 5, 7), before.bits(page, kind, 0, 5, 7));
      EXPECT_EQ(target.bits(page, kind, 1, 5, 7), source.bits(page, kind, 1, 5, 7));
      EXPECT_EQ(target.bits(page, kind, 2, 31, 199), source.bits(page, kind, 2, 31, 199));
    }
    page = {1, 256, 200, kBlocks, 700, 0, 3};
    EXPECT_EQ(DecodePrefix(*codec, page, stages, stages.size(), target).code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST_F(KvPageCodecTest, SinksAndRecentTokensAreExactInTheAnchor) {
  const auto codec = Make("planes", KvDtype::kBf16);
  const KvPage page{0, 0, 150, kBlocks, 170, 0, 3};  // recent: positions 106 and later
  Pool source(layout_, 1), target(layout_, 2);
  Stages stages(codec->num_stages());
  codec->EncodePage(source.view(), page, stages);
  ASSERT_TRUE(DecodePrefix(*codec, page, stages, 1, target).ok());
  int num_coarse = 0;
  for (int t = 0; t < 150; ++t) {
    const bool is_protected = t < kNumSinkTokens || t >= 106;
    for (int c = 0; c < 32; ++c) {
      const bool equal =
          source.bits(page, KvKind::kKey, 1, c, t) == target.bits(page, KvKind::kKey, 1, c, t);
      if (is_protected) {
        EXPECT_TRUE(equal) << t;
      }
      num_coarse += !equal;
    }
  }
  EXPECT_GT(num_coarse, 1000);
}

TEST_F(KvPageCodecTest, AnchorOfAFloatPoolHasZeroLowHalves) {
  const auto codec = Make("planes", KvDtype::kF32);
  const KvPage page{0, 64, 100, kBlocks, 1000, 0, 3};
  Pool source(layout_, 1), target(layout_, 2);
  Stages stages(codec->num_stages());
  codec->EncodePage(source.view(), page, stages);
  for (const size_t count : {1, 2}) {
    ASSERT_TRUE(DecodePrefix(*codec, page, stages, count, target).ok());
    for (int t = 0; t < 100; ++t) {
      EXPECT_EQ(target.bits(page, KvKind::kValue, 2, 7, t) & 0xffff, 0u);
    }
  }
}

TEST_F(KvPageCodecTest, StageSizesFollowThePlan) {
  const auto codec = Make("planes", KvDtype::kBf16);
  ASSERT_EQ(codec->num_stages(), 3);
  const KvPage page{0, 256, 256, kBlocks, 10000, 0, 3};
  Pool source(layout_, 1);
  Stages stages(3);
  codec->EncodePage(source.view(), page, stages);
  // K: 2.375 + 1 + 1 bits, V: 2.375; then up to 8. A length per plane: 3 + 1, 1 + 3.
  const size_t elements = 256 * 32, heads = 3;
  EXPECT_EQ(stages[0].size(), heads * (elements * 27 / 32 + 4 * 4));
  EXPECT_EQ(stages[1].size(), heads * (elements * (4 + 6) / 8 + 4 * 4));
  EXPECT_EQ(Make("planes", KvDtype::kBf16, /*exact=*/false)->num_stages(), 2);
  EXPECT_EQ(Make("paper", KvDtype::kBf16)->num_stages(), 2);
  EXPECT_EQ(Make("int8", KvDtype::kBf16)->num_stages(), 1);
}

TEST_F(KvPageCodecTest, DamagedStagesAreRefusedAndSafe) {
  std::mt19937 rng(9);
  for (const char* name : {"planes", "bf16", "int8", "int4", "paper"}) {
    for (const auto dtype : {KvDtype::kBf16, KvDtype::kF32}) {
      const auto codec = Make(name, dtype);
      const KvPage page{1, 0, 130, kBlocks, 130, 0, 3};
      Pool source(layout_, 1), target(layout_, 2);
      Stages good(codec->num_stages());
      codec->EncodePage(source.view(), page, good);
      for (int trial = 0; trial < 60; ++trial) {
        Stages stages = good;
        auto& victim = stages[rng() % stages.size()];
        if (victim.empty()) continue;
        if (trial % 3 == 0) victim.resize(rng() % victim.size());
        if (trial % 3 == 1) victim.resize(victim.size() + 1 + rng() % 20);
        if (trial % 3 == 2) victim[rng() % victim.size()] ^= std::byte{0x40};
        const absl::Status status = DecodePrefix(*codec, page, stages, stages.size(), target);
        if (trial % 3 != 2) {
          EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << name << " " << trial;
        }
      }
      Stages noise = good;
      for (auto& b : noise[0]) b = std::byte(rng());
      EXPECT_FALSE(DecodePrefix(*codec, page, noise, noise.size(), target).ok()) << name;
    }
  }
}

TEST_F(KvPageCodecTest, ErrorsNameTheTensor) {
  const auto codec = Make("planes", KvDtype::kBf16);
  const KvPage page{1, 0, 256, kBlocks, 1000, 0, 3};
  Pool source(layout_, 1);
  Stages stages(3);
  codec->EncodePage(source.view(), page, stages);
  stages[1].resize(60);  // the table and a little more
  EXPECT_THAT(std::string(DecodePrefix(*codec, page, stages, 3, source).message()),
              HasSubstr("stage 1 of layer 1 key head 0"));
}

TEST_F(KvPageCodecTest, RefusesPlansAndLayoutsThatDoNotFit) {
  Make("planes", KvDtype::kBf16);
  KvLayout odd = layout_;
  odd.head_dim = 40;
  EXPECT_EQ(KvPageCodec::Create(*codec_, DefaultSendPlan(*codec_, 2, true), odd).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      KvPageCodec::Create(*codec_, DefaultSendPlan(*codec_, 3, true), layout_).status().code(),
      absl::StatusCode::kFailedPrecondition);
  SendPlan backwards = DefaultSendPlan(*codec_, 2, true);
  std::swap(backwards.plane_end[0], backwards.plane_end[1]);
  EXPECT_EQ(KvPageCodec::Create(*codec_, backwards, layout_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(KvPageCodec::Create(*codec_, SendPlan{}, layout_).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lynx
