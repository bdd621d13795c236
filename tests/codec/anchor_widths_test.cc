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
  EXPECT_TRUE(read->damage.empty());
  const AnchorWidths measured{{4, 2, 3, 2}, {0.25, 0.5, 0, 1}};
  const auto back = ParseAnchorWidths(ToYaml(measured), "w.yaml", 2);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->damage, measured.damage);
}

TEST(AnchorWidthsTest, ANameIsTheSameForEveryLayer) {
  EXPECT_THAT(UniformWidths("k4v2", 2)->bits, ElementsAre(4, 2, 4, 2));
  EXPECT_THAT(UniformWidths("k3v3", 1)->bits, ElementsAre(3, 3));
  for (const char* name : {"", "k4", "k5v2", "k4v1", "v4k2", "k4v22", "k8v8"}) {
    EXPECT_FALSE(UniformWidths(name, 2)) << name;
  }
}

TEST(AnchorWidthsTest, ABitLeavesAQuarterOfTheDamage) {
  const double damage[] = {1.0, 0.5, 2.0, 0};
  EXPECT_EQ(DamageLeft(damage, {{2, 2, 2, 2}}), 3.5);
  EXPECT_EQ(DamageLeft(damage, {{4, 2, 3, 2}}), 1.0 / 16 + 0.5 + 0.5);
  const auto typical = TypicalDamage(30);
  EXPECT_NEAR(DamageLeft(typical, *UniformWidths("k4v2", 30)), 0.0187, 0.002);  // docs/codecs.md
  EXPECT_NEAR(DamageLeft(typical, *UniformWidths("k3v3", 30)), 0.0243, 0.002);
}

TEST(AnchorWidthsTest, WrongFilesAreNamed) {
  const auto error = [](const std::string& yaml) {
    const auto read = ParseAnchorWidths(yaml, "w.yaml", 2);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  };
  EXPECT_THAT(error("key: [4, 3]"), HasSubstr("w.yaml: value: want a list of 2 numbers"));
  EXPECT_THAT(error("key: [4, 3]\nvalue: [2]"), HasSubstr("value: want a list of 2"));
  EXPECT_THAT(error("key: [4, 8]\nvalue: [2, 2]"), HasSubstr("key: layer 1: 8 (widths are 2..4)"));
  EXPECT_THAT(error("key: [4, x]\nvalue: [2, 2]"), HasSubstr("w.yaml: "));
  EXPECT_THAT(error("key: ["), HasSubstr("w.yaml: "));
  EXPECT_THAT(error("7"), HasSubstr("w.yaml: "));
  EXPECT_THAT(error("key: [4, 3]\nvalue: [2, 2]\nkey_damage: [1, 1]"), HasSubstr("value_damage: "));
  EXPECT_THAT(error("key: [4, 3]\nvalue: [2, 2]\nkey_damage: [1, -1]\nvalue_damage: [0, 0]"),
              HasSubstr("key_damage: layer 1: -1"));
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

TEST(AnchorWidthsTest, AnotherAnchorCutsTheSameOrderElsewhere) {
  const SendPlan plan = AnchorSendPlan({{4, 2, 3, 2}}, /*exact_target=*/true);
  const auto with = [&](AnchorPlanes anchor) { return WithAnchor(plan, anchor); };
  EXPECT_EQ(with(PlanesOfWidths({{4, 2, 3, 2}}))->plane_end, plan.plane_end);
  EXPECT_THAT(with({1, 2, 3, 3})->plane_end,
              ElementsAre(ElementsAre(1, 2, 3, 3), plan.plane_end[1], plan.plane_end[2]));
  EXPECT_THAT(with({5, 4, 4, 1})->plane_end,
              ElementsAre(ElementsAre(5, 4, 4, 1), ElementsAre(5, 4, 4, 4), plan.plane_end[2]));
  EXPECT_THAT(with({4, 4, 4, 4})->plane_end, ElementsAre(plan.plane_end[1], plan.plane_end[2]));
  EXPECT_THAT(with({5, 5, 5, 5})->plane_end, ElementsAre(plan.plane_end[2]));
  EXPECT_EQ(with({5, 5}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(with({5, 0, 5, 5}).status().message()),
              HasSubstr("layer 0 value has 0 planes, want 1..5"));
  EXPECT_THAT(std::string(with({5, 5, 6, 5}).status().message()), HasSubstr("layer 1 key has 6"));
}

}  // namespace
}  // namespace lynx
