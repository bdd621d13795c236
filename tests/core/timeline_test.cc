// SPDX-License-Identifier: Apache-2.0
#include "core/timeline.h"

#include "gtest/gtest.h"

namespace lynx {
namespace {

TEST(Timeline, MetricsFollowFromEvents) {
  Timeline t;
  t.Mark(Event::kArrived, 100);
  t.Mark(Event::kScheduled, 150);
  t.Mark(Event::kPrefillStarted, 160);
  t.Mark(Event::kFirstToken, 400);
  t.Mark(Event::kFirstDraft, 450);
  t.Mark(Event::kTargetLanded, 900);
  t.Mark(Event::kFinished, 1300);
  t.Mark(Event::kFinished, 9999);  // the first mark stays
  t.token_ns = {400, 1000, 1100, 1300};
  t.num_drafted = 8;
  t.num_accepted = 6;
  EXPECT_EQ(QueueTime(t), 50);
  EXPECT_EQ(PrefillTime(t), 240);
  EXPECT_EQ(TransferTime(t), 740);
  EXPECT_EQ(DecodeTime(t), 900);
  EXPECT_EQ(InferenceTime(t), 1150);
  EXPECT_EQ(EndToEnd(t), 1200);
  EXPECT_EQ(TimeToFirstToken(t), 300);
  EXPECT_EQ(TimeToSecondToken(t), 900);
  EXPECT_EQ(TimeToToken(t, 4), 1200);
  EXPECT_EQ(TimeToFirstDraft(t), 350);
  EXPECT_EQ(TimePerOutputToken(t), 300.0);
  EXPECT_EQ(LongestStall(t), 600);
  EXPECT_EQ(AcceptanceRate(t), 0.75);
}

TEST(Timeline, WhatDidNotHappenHasNoMetric) {
  Timeline t;
  t.Mark(Event::kArrived, 100);
  EXPECT_FALSE(QueueTime(t));
  EXPECT_FALSE(TransferTime(t));
  EXPECT_FALSE(TimeToFirstToken(t));
  EXPECT_FALSE(TimeToToken(t, 0));
  EXPECT_FALSE(TimePerOutputToken(t));
  EXPECT_FALSE(LongestStall(t));
  EXPECT_FALSE(AcceptanceRate(t));
  t.token_ns = {200};
  EXPECT_EQ(TimeToFirstToken(t), 100);
  EXPECT_FALSE(TimePerOutputToken(t));
}

}  // namespace
}  // namespace lynx
