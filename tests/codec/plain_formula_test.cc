// SPDX-License-Identifier: Apache-2.0
// The vectorised baselines against their formulas, one element after the other.
#include <gtest/gtest.h>

#include "tests/codec/kv_pages.h"
#include "tests/codec/plain_bf16.h"

namespace lynx {
namespace {

std::unique_ptr<Codec> Make(std::string_view name) {
  return std::move(*MakeCodec(name, *TestBackend()));
}

// Every magnitude that BF16 has, specials too.
void FillAnyBits(CodecPage& page, uint32_t seed) {
  std::mt19937 rng(seed);
  page.Fill([&](int, int) { return Bf16{static_cast<uint16_t>(rng())}; });
}

int Byte(const std::vector<std::byte>& plane, size_t i) { return std::to_integer<int>(plane[i]); }
Bf16 Pattern(const std::vector<std::byte>& plane, size_t i) {
  return Bf16{static_cast<uint16_t>(Byte(plane, i) | Byte(plane, i + 1) << 8)};
}
int Nibble(const std::vector<std::byte>& plane, size_t begin, size_t i) {
  return Byte(plane, begin + i / 2) >> (i % 2 * 4) & 15;
}

TEST(PlainFormulaTest, FiniteOfEveryPattern) {
  for (int bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 v{static_cast<uint16_t>(bits)};
    ASSERT_EQ(ToFloat(Finite(v)), static_cast<float>(PlainFinite(v))) << bits;
  }
}

TEST(PlainFormulaTest, FiniteBf16OfManyFloats) {
  for (uint64_t bits = 0; bits <= 0xffffffff; bits += 4099) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(FiniteBf16(x).bits, PlainRound(x).bits) << x;
  }
  EXPECT_EQ(FiniteBf16(INFINITY).bits, 0x7f7f);
  EXPECT_EQ(FiniteBf16(-INFINITY).bits, 0xff7f);
}

// One token's codes of int8 or int4, and what they decode to.
void CheckToken(const CodecPage& page, const CodecPage& decoded,
                const std::vector<std::byte>& plane, int bits, int t) {
  const int head_dim = page.shape.head_dim, group = bits == 8 ? head_dim : 64;
  const int num_groups = (head_dim + group - 1) / group;
  const size_t row = static_cast<size_t>(t) * (num_groups * 2 + head_dim * bits / 8);
  const float limit = bits == 8 ? 127 : 7;
  for (int c = 0; c < head_dim; ++c) {
    const int begin = c / group * group, end = std::min(begin + group, head_dim);
    float absmax = 0;
    for (int i = begin; i < end; ++i) {
      absmax = std::max(absmax, static_cast<float>(std::abs(PlainFinite(page.at(i, t)))));
    }
    const Bf16 scale = ToBf16(absmax / limit);
    ASSERT_EQ(Pattern(plane, row + c / group * 2).bits, scale.bits);
    const float step = scale.bits == 0 ? 1 : ToFloat(scale);
    const auto code = static_cast<int>(std::nearbyint(
        std::clamp(static_cast<float>(PlainFinite(page.at(c, t))) / step, -limit, limit)));
    const size_t codes = row + num_groups * 2;
    ASSERT_EQ(bits == 8 ? static_cast<int8_t>(Byte(plane, codes + c)) : Nibble(plane, codes, c) - 8,
              code);
    ASSERT_EQ(decoded.at(c, t).bits, PlainRound(code * double{ToFloat(scale)}).bits);
  }
}

TEST(PlainFormulaTest, TokenScaledCodecs) {
  for (const int bits : {4, 8}) {
    const auto codec = Make(bits == 4 ? "int4" : "int8");
    for (int trial = 0; trial < 24; ++trial) {
      CodecPage page({kKinds[trial % 2], 16 * (1 + trial % 16), 1 + trial * 11, 0, 0});
      trial % 3 == 0 ? FillAnyBits(page, trial) : page.FillCacheLike(trial);
      CodecPage decoded(page.shape);
      const CodecPlanes planes = Encode(*codec, page);
      ASSERT_TRUE(Decode(*codec, planes, 1, decoded).ok());
      for (int t = 0; t < page.shape.num_tokens; ++t) {
        ASSERT_NO_FATAL_FAILURE(CheckToken(page, decoded, planes[0], bits, t));
      }
    }
  }
}

double PaperValue(bool negative, int magnitude) {
  const auto y = static_cast<float>(std::expm1(magnitude / 120.0 * std::log1p(5.0)) / 5);
  return negative ? -y : y;
}

// One chunk of one channel of the paper's codec: its mean, scale and codes, and both readings.
void CheckChunk(const CodecPage& page, const CodecPage& anchors, const CodecPage& decoded,
                const CodecPlanes& planes, int c, int chunk) {
  const int head_dim = page.shape.head_dim, num_tokens = page.shape.num_tokens;
  const int begin = chunk * 32, end = std::min(begin + 32, num_tokens);
  const double lo = ToFloat(Pattern(planes[0], c * 2));
  const double range = ToFloat(Pattern(planes[0], (head_dim + c) * 2)) - lo;
  const size_t mean_at = head_dim * (4 + 2 * chunk) + c;
  const size_t codes = head_dim * (4 + 2 * ((num_tokens + 31) / 32));
  const double mean = Byte(planes[0], mean_at) / 255.0;
  const double scale = Byte(planes[0], mean_at + head_dim) / 255.0;
  const auto unit = [&](int t) {
    return range > 0 ? (PlainFinite(page.at(c, t)) - lo) * (1 / range) : 0.0;
  };
  double sum = 0, largest = 0;
  for (int t = begin; t < end; ++t) sum += unit(t);
  ASSERT_EQ(Byte(planes[0], mean_at), std::floor(sum / (end - begin) * 255 + 0.5));
  for (int t = begin; t < end; ++t) largest = std::max(largest, std::abs(unit(t) - mean));
  ASSERT_EQ(Byte(planes[0], mean_at + head_dim), std::clamp(std::ceil(largest * 255), 1., 255.));
  for (int t = begin; t < end; ++t) {
    const int anchor = Nibble(planes[0], codes, static_cast<size_t>(t) * head_dim + c);
    const int residual = Nibble(planes[1], 0, static_cast<size_t>(t) * head_dim + c);
    const int bin = anchor & 7, magnitude = 16 * bin - residual + 8;
    const double y = (unit(t) - mean) / scale;
    // A float's rounding may move a value across the edge between two codes.
    const double exact = 120 * std::log1p(5 * std::min(std::abs(y), 1.0)) / std::log(6.0);
    ASSERT_LE(std::abs(exact - magnitude), 0.5 + 1e-4);
    ASSERT_EQ(bin, (magnitude + 7) / 16);
    ASSERT_EQ((anchor & 8) != 0, y < 0);
    const double a = scale * range, b = mean * range + lo;
    ASSERT_EQ(decoded.at(c, t).bits, PlainRound(PaperValue(y < 0, magnitude) * a + b).bits);
    ASSERT_EQ(anchors.at(c, t).bits,
              PlainRound(PaperValue(y < 0, bin == 0 ? 4 : 16 * bin) * a + b).bits);
  }
}

TEST(PlainFormulaTest, PaperCodec) {
  const auto codec = Make("paper");
  for (int trial = 0; trial < 24; ++trial) {
    CodecPage page({kKinds[trial % 2], 16 * (1 + trial % 16), 1 + trial * 11, 0, 0});
    trial % 3 == 0 ? FillAnyBits(page, trial) : page.FillCacheLike(trial);
    CodecPage anchors(page.shape), decoded(page.shape);
    const CodecPlanes planes = Encode(*codec, page);
    ASSERT_TRUE(Decode(*codec, planes, 1, anchors).ok());
    ASSERT_TRUE(Decode(*codec, planes, 2, decoded).ok());
    for (int c = 0; c < page.shape.head_dim; ++c) {
      for (int chunk = 0; chunk * 32 < page.shape.num_tokens; ++chunk) {
        ASSERT_NO_FATAL_FAILURE(CheckChunk(page, anchors, decoded, planes, c, chunk));
      }
    }
  }
}

}  // namespace
}  // namespace lynx
