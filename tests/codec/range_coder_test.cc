// SPDX-License-Identifier: Apache-2.0
#include "codec/range_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lynx {
namespace {

// Symbols 0 .. 3 with these ranges.
constexpr SymbolRange kRanges[] = {{0, 4000}, {4000, 64}, {4064, 31}, {4095, 1}};

int SymbolAt(uint32_t slot) {
  int s = 0;
  while (slot >= kRanges[s].begin + kRanges[s].frequency) ++s;
  return s;
}

std::vector<int> RandomSymbols(int n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int> symbols(n);
  for (int& s : symbols) s = SymbolAt(rng() % kRangeTotal);
  return symbols;
}

std::vector<std::byte> EncodeSymbols(const std::vector<int>& symbols) {
  RangeEncoder encoder;
  for (size_t i = symbols.size(); i-- > 0;) encoder.Put(kRanges[symbols[i]]);
  std::vector<std::byte> stream;
  encoder.Finish(stream);
  return stream;
}

TEST(RangeCoderTest, GivesBackTheSymbolsAtTheirEntropy) {
  for (const int n : {0, 1, 2, 100, 100000}) {
    const std::vector<int> symbols = RandomSymbols(n, n);
    const std::vector<std::byte> stream = EncodeSymbols(symbols);
    double bits = 0;
    for (const int s : symbols) bits += kRangeBits - std::log2(kRanges[s].frequency);
    EXPECT_LE(8.0 * static_cast<double>(stream.size()), bits * 1.001 + 40) << n;
    RangeDecoder decoder(stream);
    for (const int s : symbols) {
      ASSERT_EQ(SymbolAt(decoder.slot()), s);
      ASSERT_TRUE(decoder.Take(kRanges[s]));
    }
    EXPECT_TRUE(decoder.AtEnd());
  }
}

TEST(RangeCoderTest, TheRarestSymbolsStayInTheBound) {
  const std::vector<std::byte> stream = EncodeSymbols(std::vector<int>(10000, 3));
  EXPECT_LE(stream.size(), RangeEncoder::MaxBytes(10000));
  EXPECT_GE(stream.size(), 15000u);
}

TEST(RangeCoderTest, AnyBytesEndOrAreNoticed) {
  std::mt19937 rng(5);
  const std::vector<int> symbols = RandomSymbols(1000, 7);
  const std::vector<std::byte> good = EncodeSymbols(symbols);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<std::byte> stream = good;
    if (trial % 2 == 0) {
      stream.resize(rng() % stream.size());
    } else {
      stream[rng() % stream.size()] ^= std::byte(1 + rng() % 255);
    }
    stream.shrink_to_fit();
    RangeDecoder decoder(stream);
    size_t n = 0;
    bool same = true;
    for (; n < symbols.size(); ++n) {
      const int s = SymbolAt(decoder.slot());
      same &= s == symbols[n];
      if (!decoder.Take(kRanges[s])) break;
    }
    EXPECT_FALSE(same && n == symbols.size() && decoder.AtEnd()) << trial;
  }
}

}  // namespace
}  // namespace lynx
