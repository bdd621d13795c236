// SPDX-License-Identifier: Apache-2.0
#include "bench/lab/parse_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lynx {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

TEST(ParseLinkTest, UnitsOfRatesAndTimes) {
  EXPECT_THAT(ParseBitRate("200mbit").value(), DoubleEq(200e6));
  EXPECT_THAT(ParseBitRate("2.5gbit").value(), DoubleEq(2.5e9));
  EXPECT_THAT(ParseSeconds("0.2ms").value(), DoubleEq(0.2e-3));
  EXPECT_THAT(ParseSeconds("50us").value(), DoubleEq(50e-6));
  EXPECT_EQ(ParseSeconds("0").value(), 0);
  for (const char* bad :
       {"", "1", "mbit", "1gb", "-1gbit", "0mbit", "nan", "1e400gbit", "9999gbit"}) {
    EXPECT_THAT(ParseBitRate(bad).status().message(), HasSubstr("--link")) << bad;
  }
  for (const char* bad : {"", "1", "ms", "-1ms", "2s", "inf"}) {
    EXPECT_THAT(ParseSeconds(bad).status().message(), HasSubstr("--rtt")) << bad;
  }
}

}  // namespace
}  // namespace lynx
