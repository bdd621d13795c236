// SPDX-License-Identifier: Apache-2.0
// fp8, int8-channel, int4-kivi and cachegen against their formulas, one element after the other.
#include <gtest/gtest.h>

#include "codec/fp8.h"
#include "tests/codec/kv_pages.h"
#include "tests/codec/plain_bf16.h"

namespace lynx {
namespace {

// Expected(page, c, t) for every element of pages of all tails, both kinds, any bits and not.
template <typename F>
void CheckPages(std::string_view name, F&& check_page) {
  const auto backend = TestBackend();
  const auto codec = std::move(*MakeCodec(name, *backend));
  for (int trial = 0; trial < 24; ++trial) {
    CodecPage page({kKinds[trial % 2], 16 * (1 + trial % 16), 1 + trial * 11, 0, 0, trial, 24});
    std::mt19937 rng(trial);
    if (trial % 3 == 0) {
      page.Fill([&](int, int) { return Bf16{static_cast<uint16_t>(rng())}; });
    } else {
      page.FillCacheLike(trial);
    }
    CodecPage decoded(page.shape);
    ASSERT_TRUE(Decode(*codec, Encode(*codec, page), 1, decoded).ok());
    ASSERT_NO_FATAL_FAILURE(check_page(page, decoded)) << name << " trial " << trial;
  }
}

// The number of a code, from the definition of e4m3.
double PlainE4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The nearest number; of two as near, the one with the even code.
int PlainToE4m3(double x) {
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double error = std::abs(std::abs(x) - PlainE4m3(code));
    const double least = std::abs(std::abs(x) - PlainE4m3(best));
    if (error < least || (error == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(QuantizerFormulaTest, E4m3OfEveryCodeAndBetween) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == kNanE4m3) continue;
    const auto c = static_cast<uint8_t>(code);
    EXPECT_EQ(E4m3ToFloat(c), PlainE4m3(code)) << code;
    EXPECT_EQ(ToE4m3(E4m3ToFloat(c)), code);
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 20000; ++i) {
    // Every place of the range: fractions of random powers of two, and halves between codes.
    const float unit = static_cast<float>(rng()) * 0x1p-32f;
    const float x = i % 4 == 0 ? (E4m3ToFloat(i / 4 % 126) + E4m3ToFloat(i / 4 % 126 + 1)) / 2
                               : std::ldexp(unit, static_cast<int>(rng() % 24) - 14);
    if (x > kMaxE4m3) continue;
    ASSERT_EQ(ToE4m3(x), PlainToE4m3(x)) << x;
    ASSERT_EQ(ToE4m3(-x), PlainToE4m3(x) | 0x80) << x;
  }
}

TEST(QuantizerFormulaTest, Fp8) {
  CheckPages("fp8", [](const CodecPage& page, const CodecPage& decoded) {
    const int head_dim = page.shape.head_dim;
    for (int t = 0; t < page.shape.num_tokens; ++t) {
      float absmax = 0;
      for (int c = 0; c < head_dim; ++c) {
        absmax = std::max(absmax, static_cast<float>(std::abs(PlainFinite(page.at(c, t)))));
      }
      const double scale = ToFloat(ToBf16(absmax / 448));
      for (int c = 0; c < head_dim; ++c) {
        const double x = PlainFinite(page.at(c, t));
        const float y = std::min<float>(
            static_cast<float>(std::abs(x)) / static_cast<float>(scale == 0 ? 1 : scale), 448);
        const double value = PlainE4m3(PlainToE4m3(y)) * scale;
        const Bf16 want =
            PlainRound(std::signbit(ToFloat(page.at(c, t))) && x != 0 ? -value : value);
        ASSERT_EQ(ToFloat(decoded.at(c, t)), ToFloat(want)) << c << " " << t;
      }
    }
  });
}

TEST(QuantizerFormulaTest, Int8Channel) {
  CheckPages("int8-channel", [](const CodecPage& page, const CodecPage& decoded) {
    for (int c = 0; c < page.shape.head_dim; ++c) {
      for (int begin = 0; begin < page.shape.num_tokens; begin += kBlockSize) {
        const int end = std::min(begin + kBlockSize, page.shape.num_tokens);
        float absmax = 0;
        for (int t = begin; t < end; ++t) {
          absmax = std::max(absmax, static_cast<float>(std::abs(PlainFinite(page.at(c, t)))));
        }
        const float scale = ToFloat(ToBf16(absmax / 127)), step = scale == 0 ? 1 : scale;
        for (int t = begin; t < end; ++t) {
          const float y = static_cast<float>(PlainFinite(page.at(c, t))) / step;
          const double code = std::nearbyint(std::clamp(y, -127.0f, 127.0f));
          ASSERT_EQ(ToFloat(decoded.at(c, t)), ToFloat(PlainRound(code * double{scale})));
        }
      }
    }
  });
}

// Elements that share a group: for keys 32 tokens of a block, for values 32 channels of a token.
TEST(QuantizerFormulaTest, Int4Kivi) {
  CheckPages("int4-kivi", [](const CodecPage& page, const CodecPage& decoded) {
    const bool key = page.shape.kind == KvKind::kKey;
    const int num_tokens = page.shape.num_tokens, head_dim = page.shape.head_dim;
    const int along = key ? num_tokens : head_dim, across = key ? head_dim : num_tokens;
    for (int r = 0; r < across; ++r) {
      for (int begin = 0; begin < along; begin += 32) {
        const int end = std::min(begin + 32, along);
        const auto at = [&](const CodecPage& p, int i) { return key ? p.at(r, i) : p.at(i, r); };
        double lo = INFINITY, hi = -INFINITY;
        for (int i = begin; i < end; ++i) {
          lo = std::min(lo, PlainFinite(at(page, i)));
          hi = std::max(hi, PlainFinite(at(page, i)));
        }
        const double scale = ToFloat(ToBf16(static_cast<float>((hi - lo) / 15)));
        for (int i = begin; i < end; ++i) {
          const double y = (PlainFinite(at(page, i)) - lo) / (scale == 0 ? 1 : scale);
          const double code = std::nearbyint(std::min(static_cast<float>(y), 15.0f));
          ASSERT_EQ(ToFloat(at(decoded, i)), ToFloat(PlainRound(lo + code * scale)))
              << r << " " << i;
        }
      }
    }
  });
}

// Codes and values of one vector of floats.
struct PlainVector {
  PlainVector(const std::vector<float>& x, int limit) {
    float absmax = 0;
    for (const float v : x) absmax = std::max(absmax, std::abs(v));
    const float scale = ToFloat(PlainRound(absmax / static_cast<float>(limit)));
    for (const float v : x) {
      const float y = v / (scale == 0 ? 1 : scale), most = static_cast<float>(limit);
      value.push_back(std::nearbyint(std::clamp(y, -most, most)) * scale);
    }
  }
  std::vector<float> value;  // may be infinite
};

int PlainLimit(const PageShape& shape) {
  const double depth = 32.0 * shape.layer / shape.num_layers;
  return depth < (shape.kind == KvKind::kKey ? 10 : 2) ? 15 : 7;
}

TEST(QuantizerFormulaTest, Cachegen) {
  CheckPages("cachegen", [](const CodecPage& page, const CodecPage& decoded) {
    const int head_dim = page.shape.head_dim;
    std::vector<float> anchor(head_dim);
    for (int t = 0; t < page.shape.num_tokens; ++t) {
      std::vector<float> x(head_dim), base(head_dim);
      for (int c = 0; c < head_dim; ++c) x[c] = static_cast<float>(PlainFinite(page.at(c, t)));
      if (t % 10 != 0) {
        base = anchor;
        for (int c = 0; c < head_dim; ++c) {
          x[c] = static_cast<float>(std::clamp<double>(x[c] - base[c], -kLargest, kLargest));
        }
      }
      const PlainVector coded(x, t % 10 == 0 ? 127 : PlainLimit(page.shape));
      for (int c = 0; c < head_dim; ++c) {
        const Bf16 want = PlainRound(base[c] + coded.value[c]);
        ASSERT_EQ(ToFloat(decoded.at(c, t)), ToFloat(want)) << c << " " << t;
        if (t % 10 == 0) anchor[c] = ToFloat(want);
      }
    }
  });
}

}  // namespace
}  // namespace lynx
