// SPDX-License-Identifier: Apache-2.0
#include "codec/anchor_widths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lynx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AnchorWidthsTest, BitsGoWhereTheySaveMost) {
  const double damage[] = {1.0, 0.1, 0.3, 0.02};
  EXPECT_THAT(AllocateWidths(damage, 2).bits, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(AllocateWidths(damage, 2.5).bits, ElementsAre(3, 2, 3, 2));
  EXPECT_THAT(AllocateWidths(damage, 2.75).bits, ElementsAre(4, 2, 3, 2));
  EXPECT_THAT(AllocateWidths(damage, 3).bits, ElementsAre(4, 3, 3, 2));
  EXPECT_THAT(AllocateWidths(damage, 4).bits, ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(AllocateWidths(damage, 9).bits, ElementsAre(4, 4, 4, 4));
}

TEST(AnchorWidthsTest, TheFileComesBack) {
  const AnchorWidths widths{{4, 2, 3, 2, 2, 3}};
  const std::string yaml = ToYaml(widths);
  EXPECT_EQ(yaml, "key: [4, 3, 2]\nvalue: [2, 2, 3]\n");
  const auto read = ParseAnchorWidths("# a comment\n" + yaml, "w.yaml", 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->bits, widths.bits);
}

TEST(AnchorWidthsTest, WrongFilesAreNamed) {
  const auto error = [](const std::string& yaml) {
    const auto read = ParseAnchorWidths(yaml, "w.yaml", 2);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  };
  EXPECT_THAT(error("key: [4, 3]"), HasSubstr("w.yaml: value: want a list of 2 widths"));
  EXPECT_THAT(error("key: [4, 3]\nvalue: [2]"), HasSubstr("value: want a list of 2"));
  EXPECT_THAT(error("key: [4, 8]\nvalue: [2, 2]"), HasSubstr("key: layer 1: 8 is not in 2..4"));
  EXPECT_THAT(error("key: [4, x]\nvalue: [2, 2]"), HasSubstr("w.yaml: "));
  EXPECT_THAT(error("key: ["), HasSubstr("w.yaml: "));
  EXPECT_THAT(error("7"), HasSubstr("w.yaml: "));
}

TEST(AnchorWidthsTest, ThePlanSendsTheAnchorFirst) {
  const SendPlan plan = AnchorSendPlan({{4, 2, 3, 2}}, /*exact_target=*/true);
  ASSERT_EQ(plan.num_stages(), 3);
  EXPECT_THAT(plan.plane_end[0], ElementsAre(3, 1, 2, 1));
  EXPECT_THAT(plan.plane_end[1], ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(plan.plane_end[2], ElementsAre(5, 5, 5, 5));
  EXPECT_EQ(AnchorSendPlan({{4, 2}}, /*exact_target=*/false).num_stages(), 2);
  EXPECT_EQ(PlanesOfBits(8), 4);
  EXPECT_EQ(PlanesOfBits(5), -1);
}

}  // namespace
}  // namespace lynx
