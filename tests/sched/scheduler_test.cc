// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lynx {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

RowRequest Decode(int64_t arrival, int position, int num_blocks) {
  return {.precedence = {.arrival = arrival},
          .phase = Phase::kDecode,
          .num_rows = 1,
          .position = position,
          .num_blocks = num_blocks,
          .preemptible = true};
}

RowRequest Prefill(int64_t arrival, int num_rows) {
  return {.precedence = {.arrival = arrival},
          .phase = Phase::kPrefill,
          .num_rows = num_rows,
          .num_blocks = (num_rows + 63) / 64,
          .preemptible = true};
}

RowRequest WithPhase(RowRequest r, Phase phase, int num_rows, bool preemptible) {
  r.phase = phase;
  r.num_rows = num_rows;
  r.preemptible = preemptible;
  return r;
}

std::map<int, int> Rows(const Plan& plan) {
  std::map<int, int> rows;
  for (const Grant& g : plan.grants) rows[g.index] = g.num_rows;
  return rows;
}

TEST(Scheduler, ServesVerifyThenDecodeThenDraftThenPrefill) {
  Scheduler s({.max_num_seqs = 8, .max_num_batched_tokens = 20});
  const std::vector<RowRequest> requests = {
      Prefill(0, 100), WithPhase(Decode(1, 10, 1), Phase::kDraft, 1, false), Decode(2, 10, 1),
      WithPhase(Decode(3, 10, 1), Phase::kVerify, 9, true)};
  const Plan& plan = s.Schedule(requests, 10);
  std::vector<int> order;
  for (const Grant& g : plan.grants) order.push_back(g.index);
  EXPECT_THAT(order, ElementsAre(3, 2, 1, 0));
  EXPECT_EQ(Rows(plan), (std::map<int, int>{{3, 9}, {2, 1}, {1, 1}, {0, 9}}));
}

PromptWork Work(int position, int num_rows) {
  PromptWork work;
  work.Add(position, num_rows);
  return work;
}

// Every row costs 1 ms, everything else 10 ms.
void TeachAMillisecondPerRow(Scheduler& s) {
  for (int i = 0; i < 50; ++i) {
    s.Observe({}, 10'000'000);
    s.Observe(Work(0, 100), 110'000'000);
  }
}

TEST(Scheduler, PrefillStaysBelowTheTargetWhileOthersDecode) {
  Scheduler s({.max_num_seqs = 8, .max_num_batched_tokens = 512});
  const std::vector<RowRequest> both = {Prefill(0, 4000), Decode(1, 5, 1)};
  EXPECT_EQ(Rows(s.Schedule(both, 9))[0], StepTimeModel::kFirstRows) << "nothing is known yet";
  TeachAMillisecondPerRow(s);
  EXPECT_NEAR(Rows(s.Schedule(both, 9))[0], 40, 2);
  EXPECT_EQ(Rows(s.Schedule(std::vector{Prefill(0, 4000)}, 9))[0], 512) << "nobody to protect";
}

TEST(Scheduler, PrefillGoesOnWhereTheTargetCannotBeKept) {
  const std::vector<RowRequest> requests = {Prefill(0, 4000), Prefill(2, 3000), Decode(1, 5, 1)};
  for (const auto& [target_ns, num_rows] : {std::pair(5'000'000, 1), std::pair(9'600'000, 1)}) {
    Scheduler s({.step_target_ns = target_ns});
    TeachAMillisecondPerRow(s);
    int sum = 0;
    for (const auto& [index, rows] : Rows(s.Schedule(requests, 9))) sum += index < 2 ? rows : 0;
    EXPECT_EQ(sum, num_rows) << "for all prompts together";
    EXPECT_EQ(s.AdmittedRows(0, 100), 0);
  }
}

TEST(Scheduler, SeveralPromptsShareTheTime) {
  Scheduler s({.max_num_seqs = 8, .max_num_batched_tokens = 512});
  TeachAMillisecondPerRow(s);
  const std::vector<RowRequest> requests = {Prefill(0, 4000), Prefill(1, 5), Decode(2, 5, 1)};
  auto rows = Rows(s.Schedule(requests, 9));
  EXPECT_EQ(rows[1], 5);
  EXPECT_NEAR(rows[0], 35, 2);
  EXPECT_LE(s.AdmittedRows(0, 100), 1);
}

TEST(Scheduler, AShortPromptDoesNotWaitForALongOne) {
  Scheduler s({.max_num_seqs = 8, .max_num_batched_tokens = 512});
  const std::vector<RowRequest> requests = {Prefill(0, 4000), Prefill(1, 3000), Prefill(2, 40)};
  EXPECT_EQ(Rows(s.Schedule(requests, 9)), (std::map<int, int>{{0, 256}, {1, 216}, {2, 40}}));
}

TEST(Scheduler, ALongVerificationRunsInPieces) {
  Scheduler s({.max_num_seqs = 8, .max_num_batched_tokens = 16});
  const auto verify = WithPhase(Decode(0, 10, 2), Phase::kVerify, 65, true);
  EXPECT_EQ(Rows(s.Schedule(std::vector{verify}, 0))[0], 16);
}

TEST(Scheduler, ADecodeGetsANewBlockAtTheBoundary) {
  Scheduler s({});
  EXPECT_EQ(s.Schedule(std::vector{Decode(0, 63, 1)}, 1).grants[0].num_new_blocks, 0);
  EXPECT_EQ(s.Schedule(std::vector{Decode(0, 64, 1)}, 1).grants[0].num_new_blocks, 1);
}

TEST(Scheduler, TheYoungestGivesItsBlocksUp) {
  Scheduler s({});
  const std::vector<RowRequest> requests = {Decode(0, 64, 1), Decode(1, 10, 1), Decode(2, 10, 1)};
  const Plan& plan = s.Schedule(requests, 0);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_EQ(Rows(plan), (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST(Scheduler, PriorityComesBeforeArrival) {
  Scheduler s({});
  std::vector<RowRequest> requests = {Decode(0, 64, 1), Decode(1, 10, 1), Decode(2, 10, 1)};
  requests[1].precedence.priority = 5;
  EXPECT_THAT(s.Schedule(requests, 0).preempted, ElementsAre(1));
}

TEST(Scheduler, TheYoungestPreemptsItself) {
  Scheduler s({});
  const std::vector<RowRequest> requests = {Decode(0, 10, 1), Decode(1, 64, 1)};
  const Plan& plan = s.Schedule(requests, 0);
  EXPECT_THAT(plan.preempted, ElementsAre(1));
  EXPECT_EQ(Rows(plan), (std::map<int, int>{{0, 1}}));
}

// A verification is served first, whoever asks for it; it takes nobody's place in line.
TEST(Scheduler, AnOlderOneIsNotPreemptedWhereAYoungerOneRuns) {
  Scheduler s({});
  const auto verifies = WithPhase(Decode(1, 10, 1), Phase::kVerify, 3, true);
  const Plan& plan = s.Schedule(std::vector{Decode(0, 64, 1), verifies}, 0);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(Rows(plan), (std::map<int, int>{{1, 3}}));
  EXPECT_THAT(s.Schedule(std::vector{Decode(0, 64, 1), Decode(1, 12, 1)}, 0).preempted,
              ElementsAre(1));
}

// Its KV is still being written; it cannot give its blocks up, so the asker waits with its own.
TEST(Scheduler, ALoadingSequenceIsNeverPreempted) {
  Scheduler s({});
  const auto loading = WithPhase(Decode(1, 10, 5), Phase::kIdle, 0, false);
  for (const int64_t arrival : {0, 2}) {
    const Plan& plan = s.Schedule(std::vector{Decode(arrival, 64, 1), loading}, 0);
    EXPECT_THAT(plan.preempted, IsEmpty());
    EXPECT_THAT(plan.grants, IsEmpty());
  }
}

TEST(Scheduler, DraftsPreemptNobody) {
  Scheduler s({});
  const std::vector<RowRequest> requests = {WithPhase(Decode(0, 64, 1), Phase::kDraft, 1, false),
                                            Decode(1, 10, 1)};
  const Plan& plan = s.Schedule(requests, 0);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_EQ(Rows(plan), (std::map<int, int>{{1, 1}}));
}

TEST(Scheduler, AdmissionNeedsBlocksASeatAndASpareBlock) {
  Scheduler s({.max_num_seqs = 2, .max_num_batched_tokens = 512});
  s.Schedule({}, 10);
  EXPECT_TRUE(s.Admit(6, 0));
  EXPECT_EQ(s.AdmittedRows(0, 400), 400);
  EXPECT_FALSE(s.Admit(4, 0)) << "no spare block";
  EXPECT_TRUE(s.Admit(3, 0)) << "smaller ones go past";
  EXPECT_EQ(s.AdmittedRows(0, 400), 112);
  EXPECT_FALSE(s.Admit(0, 0)) << "no seat";
}

TEST(Scheduler, WhatTakesNoSeatLeavesThemAll) {
  Scheduler s({.max_num_seqs = 2});
  std::vector<RowRequest> requests = {Decode(0, 64, 2), Decode(1, 64, 2)};
  for (RowRequest& r : requests) r.takes_seat = false;
  EXPECT_THAT(Rows(s.Schedule(requests, 9)), ElementsAre(Pair(0, 1), Pair(1, 1)));
  EXPECT_EQ(s.num_free_seats(), 2);
}

TEST(Scheduler, WhatTakesNoSeatLeavesHalfOfAStepToPrompts) {
  Scheduler s({.max_num_seqs = 2, .max_num_batched_tokens = 32, .step_target_ns = 0});
  std::vector<RowRequest> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(Decode(i, 5, 1));
  requests.push_back(WithPhase(Decode(40, 5, 1), Phase::kVerify, 9, true));
  for (RowRequest& r : requests) r.takes_seat = false;
  requests.push_back(Prefill(41, 100));
  auto rows = Rows(s.Schedule(requests, 9));
  EXPECT_EQ(rows[40], 9);
  EXPECT_EQ(rows[41], 16);
  EXPECT_EQ(rows.size(), 9u);
}

TEST(Scheduler, PrefillShrinksOnlyWhereDecodesAreToBeProtected) {
  const std::vector<RowRequest> requests = {Decode(0, 10, 1), Prefill(1, 1000)};
  Scheduler protects({.max_num_batched_tokens = 512});
  EXPECT_EQ(Rows(protects.Schedule(requests, 9))[1], StepTimeModel::kFirstRows);
  Scheduler does_not({.max_num_batched_tokens = 512, .step_target_ns = 0});
  EXPECT_EQ(Rows(does_not.Schedule(requests, 9))[1], 511);
}

TEST(Scheduler, ASingleSequenceMayTakeThePool) {
  Scheduler s({});
  s.Schedule({}, 10);
  EXPECT_TRUE(s.Admit(10, 0));
}

TEST(Scheduler, OneThatWasPassedTooOftenHoldsTheQueue) {
  Scheduler s({});
  s.Schedule({}, 4);
  EXPECT_FALSE(s.Admit(5, 32));
  EXPECT_FALSE(s.Admit(1, 0));
}

TEST(Scheduler, PreemptedBlocksServeWaitingOnesLast) {
  Scheduler s({});
  const std::vector<RowRequest> requests = {Decode(0, 64, 1), Decode(1, 10, 3)};
  EXPECT_THAT(s.Schedule(requests, 0).preempted, ElementsAre(1));
  EXPECT_FALSE(s.Admit(2, 0));  // 3 freed, 1 taken by the decode, 1 spare
  EXPECT_TRUE(s.Admit(1, 0));
}

}  // namespace
}  // namespace lynx
