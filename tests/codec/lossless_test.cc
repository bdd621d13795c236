// SPDX-License-Identifier: Apache-2.0
// Lossless codecs give back every pattern of BF16 in every place, and encode it again to the same
// bytes; bf16-lossless refuses frames that are not its own.
#include <gtest/gtest.h>
#include <zstd.h>

#include "tests/codec/kv_pages.h"

namespace lynx {
namespace {

std::unique_ptr<Codec> Make(std::string_view name, const Backend& backend) {
  return std::move(*MakeCodec(name, backend));
}

void ExpectSameBits(const CodecPage& a, const CodecPage& b) {
  for (int t = 0; t < a.shape.num_tokens; ++t) {
    for (int c = 0; c < a.shape.head_dim; ++c) {
      ASSERT_EQ(a.at(c, t).bits, b.at(c, t).bits) << "channel " << c << ", token " << t;
    }
  }
}

TEST(LosslessTest, EveryPatternComesBackAndEncodesToTheSameBytes) {
  const auto backend = TestBackend();
  for (const char* name : {"planes", "bf16", "bf16-lossless"}) {
    const auto codec = Make(name, *backend);
    ASSERT_TRUE(codec->lossless());
    for (const KvKind kind : kKinds) {
      // 65,536 patterns in four pages, scattered by an odd factor.
      for (uint32_t first = 0; first < 0x10000; first += kPageTokens * 64) {
        CodecPage page({kind, 64, kPageTokens, 0, 0}), decoded(page.shape);
        page.Fill([&](int c, int t) {
          return Bf16{static_cast<uint16_t>((first + t * 64 + c) * 40503u)};
        });
        const CodecPlanes planes = Encode(*codec, page);
        ASSERT_TRUE(Decode(*codec, planes, planes.size(), decoded).ok());
        ASSERT_NO_FATAL_FAILURE(ExpectSameBits(page, decoded)) << name;
        EXPECT_EQ(Encode(*codec, decoded), planes) << name;
      }
    }
  }
}

// Bits per element of (largest exponent of the channel - exponent), without memory.
double ExponentEntropy(const CodecPage& page) {
  const auto exponent = [&](int c, int t) { return page.at(c, t).bits >> 7 & 0xff; };
  std::array<double, 256> count = {};
  for (int c = 0; c < page.shape.head_dim; ++c) {
    int largest = 0;
    for (int t = 0; t < page.shape.num_tokens; ++t) largest = std::max(largest, exponent(c, t));
    for (int t = 0; t < page.shape.num_tokens; ++t) ++count[largest - exponent(c, t)];
  }
  const double total = page.shape.head_dim * page.shape.num_tokens;
  double bits = 0;
  for (const double n : count) bits -= n == 0 ? 0 : n / total * std::log2(n / total);
  return bits;
}

TEST(LosslessTest, ExponentsCostTheirEntropy) {
  const auto backend = TestBackend();
  const auto codec = Make("bf16-lossless", *backend);
  for (const KvKind kind : kKinds) {
    CodecPage page({kind, 64, kPageTokens, 0, 0});
    page.FillCacheLike(4);
    const double bits = 8.0 * static_cast<double>(Encode(*codec, page)[0].size()) / (64 * 256);
    EXPECT_LT(bits, 8 + ExponentEntropy(page) + 0.15);
  }
}

class ExponentFrame : public ::testing::Test {
 protected:
  // A page of 16 channels by 3 tokens, in two parts: bases, signs and mantissas; and the frame.
  ExponentFrame() : page_({KvKind::kValue, 16, 3, 0, 0}) {
    page_.FillCacheLike(1);
    plane_ = Encode(*codec_, page_)[0];
    plane_.resize(16 + 48);
  }
  absl::Status DecodeWith(const std::vector<uint8_t>& exponents) {
    std::vector<std::byte> plane = plane_;
    plane.resize(plane.size() + ZSTD_compressBound(exponents.size()));
    const size_t bytes =
        ZSTD_compress(&plane[64], plane.size() - 64, exponents.data(), exponents.size(), 1);
    plane.resize(64 + bytes);
    plane.insert(plane.end(), tail_.begin(), tail_.end());
    plane.shrink_to_fit();
    return Decode(*codec_, {plane}, 1, page_);
  }
  std::unique_ptr<Backend> backend_ = TestBackend();
  std::unique_ptr<Codec> codec_ = Make("bf16-lossless", *backend_);
  CodecPage page_;
  std::vector<std::byte> plane_, tail_;
};

TEST_F(ExponentFrame, OfTheRightSizeIsTaken) {
  EXPECT_TRUE(DecodeWith(std::vector<uint8_t>(48, 0)).ok());
  plane_[0] = std::byte{5};
  EXPECT_TRUE(DecodeWith(std::vector<uint8_t>(48, 5)).ok());
}

TEST_F(ExponentFrame, OfAnotherSizeIsRefused) {
  for (const size_t size : {0, 1, 47, 49, 100000}) {
    EXPECT_EQ(DecodeWith(std::vector<uint8_t>(size, 0)).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(ExponentFrame, FollowedByAnotherIsRefused) {
  tail_.resize(ZSTD_compressBound(0));
  tail_.resize(ZSTD_compress(tail_.data(), tail_.size(), nullptr, 0, 1));
  EXPECT_EQ(DecodeWith(std::vector<uint8_t>(48, 0)).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ExponentFrame, WithAnExponentBelowZeroIsRefused) {
  plane_[3] = std::byte{5};
  EXPECT_EQ(DecodeWith(std::vector<uint8_t>(48, 6)).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lynx
