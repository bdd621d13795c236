// SPDX-License-Identifier: Apache-2.0
#include "sched/step_time_model.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sched/scheduler.h"

namespace lynx {
namespace {

constexpr double kMs = 1e6;

// A machine: a step of `rows` prompt rows from `position` on beside `base_ns` of other work.
struct Machine {
  double base_ns = 0;
  double row_ns = 0;
  double pair_ns = 0;
  double free_rows = 0;  // so many hide behind the reading of weights
  double noise = 0;      // relative, uniform
  std::mt19937 rng{1};

  int64_t Run(int position, int rows) {
    PromptWork work;
    work.Add(position, rows);
    const double ns = base_ns + std::max(0.0, rows - free_rows) * row_ns + work.num_pairs * pair_ns;
    std::uniform_real_distribution<double> jitter(1 - noise, 1 + noise);
    return static_cast<int64_t>(ns * jitter(rng));
  }
};

struct Step {
  int position = 0;
  int num_rows = 0;
  double ns = 0;
};

// Streams decode, then a prompt of `length` comes: the steps that it takes.
std::vector<Step> Prefill(Scheduler& s, Machine& machine, int length) {
  std::vector<Step> steps;
  const RowRequest decode{
      .precedence = {}, .phase = Phase::kDecode, .num_rows = 1, .position = 5, .num_blocks = 1};
  for (int position = 0; position < length;) {
    const RowRequest prompt{.precedence = {.arrival = 1},
                            .phase = Phase::kPrefill,
                            .num_rows = length - position,
                            .position = position,
                            .num_blocks = length / kBlockSize + 1};
    const Plan& plan = s.Schedule(std::vector{decode, prompt}, 9);
    EXPECT_EQ(plan.grants.size(), 2u) << "a prompt always goes on";
    if (plan.grants.size() != 2) return steps;
    const int rows = plan.grants[1].num_rows;
    EXPECT_GE(rows, 1);
    PromptWork work;
    work.Add(position, rows);
    const int64_t ns = machine.Run(position, rows);
    s.Observe(work, ns);
    steps.push_back({position, rows, static_cast<double>(ns)});
    position += rows;
  }
  return steps;
}

void Decode(Scheduler& s, Machine& machine, int num_steps) {
  for (int i = 0; i < num_steps; ++i) s.Observe({}, machine.Run(0, 0));
}

TEST(StepTimeModel, WorkCountsWhatEachRowAttendsTo) {
  PromptWork work;
  work.Add(10, 3);  // 11 + 12 + 13
  EXPECT_EQ(work.num_rows, 3);
  EXPECT_DOUBLE_EQ(work.num_pairs, 36);
}

TEST(StepTimeModel, RowsWithinInvertsTheTimeOfRows) {
  StepTimeModel m;
  m.Observe({}, 5'000'000);
  PromptWork work;
  work.Add(1000, 64);
  m.Observe(work, 40'000'000);
  for (const int position : {0, 100, 5000, 100000}) {
    for (const double ns : {1e6, 2e7, 1e9}) {
      const int rows = m.RowsWithin(ns, position);
      EXPECT_LE(m.PromptNs(position, rows), ns * (1 + 1e-9)) << position << " " << ns;
      EXPECT_GT(m.PromptNs(position, rows + 1), ns * (1 - 1e-9)) << position << " " << ns;
    }
    EXPECT_EQ(m.RowsWithin(0, position), 0);
    EXPECT_EQ(m.RowsWithin(-1, position), 0);
  }
}

// The numbers are of a small model on one thread and on a GPU, and of a large one.
TEST(StepTimeModel, AChunkKeepsTheTargetAtEveryDepth) {
  for (Machine machine : {Machine{.base_ns = 7 * kMs, .row_ns = 1.6 * kMs, .pair_ns = 300},
                          Machine{.base_ns = 20 * kMs, .row_ns = 0.2 * kMs, .pair_ns = 40},
                          Machine{.base_ns = 3 * kMs, .row_ns = 2e4, .pair_ns = 2},
                          Machine{.base_ns = 7 * kMs, .row_ns = 1.6 * kMs, .pair_ns = 1500}}) {
    Scheduler s({.max_num_batched_tokens = 512});
    Decode(s, machine, 20);
    const auto steps = Prefill(s, machine, 8000);
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto first = machine.Run(steps[i].position, StepTimeModel::kFirstRows);
      EXPECT_LE(steps[i].ns, 1.1 * std::max<double>(50 * kMs, i == 0 ? first : 0)) << i;
      if (i < 8 || i + 1 == steps.size() || steps[i].num_rows >= 500) continue;
      const double row_ns = machine.Run(steps[i].position, 1) - machine.base_ns;
      EXPECT_GE(steps[i].ns, 0.85 * 50 * kMs - row_ns) << "the time is not wasted, step " << i;
    }
  }
}

// Rows that cost nothing at first must not promise that more do.
TEST(StepTimeModel, NearlyFreeRowsDoNotCauseAnOvershoot) {
  Machine machine{.base_ns = 7 * kMs, .row_ns = 2 * kMs, .pair_ns = 100, .free_rows = 16};
  Scheduler s({.max_num_batched_tokens = 512});
  for (int i = 0; i < 10; ++i) {
    Decode(s, machine, 20);
    Prefill(s, machine, 12);
  }
  const auto steps = Prefill(s, machine, 6000);
  int num_above = 0;
  for (const Step& step : steps) {
    EXPECT_LE(step.ns, 2 * 50 * kMs);
    num_above += step.ns > 60 * kMs ? 1 : 0;
  }
  EXPECT_LE(num_above, 2);
}

TEST(StepTimeModel, FollowsAMachineThatBecomesSlowerAndFaster) {
  Machine machine{.base_ns = 7 * kMs, .row_ns = 0.4 * kMs, .pair_ns = 50};
  Scheduler s({.max_num_batched_tokens = 512});
  Decode(s, machine, 20);
  Prefill(s, machine, 4000);
  for (const double factor : {3.0, 1.0 / 3, 1.0 / 3, 3.0}) {
    machine.base_ns *= factor;
    machine.row_ns *= factor;
    machine.pair_ns *= factor;
    const auto steps = Prefill(s, machine, 4000);  // no step without prompt rows in between
    EXPECT_LE(steps.front().ns, 3.2 * 50 * kMs);
    for (size_t i = 10; i + 1 < steps.size(); ++i) {
      EXPECT_NEAR(steps[i].ns, 50 * kMs, 10 * kMs) << factor << " step " << i;
    }
  }
}

TEST(StepTimeModel, ADisturbedStepIsSoonForgotten) {
  Machine machine{.base_ns = 7 * kMs, .row_ns = 0.4 * kMs, .pair_ns = 50, .noise = 0.1};
  Scheduler s({.max_num_batched_tokens = 512});
  Decode(s, machine, 20);
  Prefill(s, machine, 2000);
  s.Observe({}, static_cast<int64_t>(5000 * kMs));
  const auto steps = Prefill(s, machine, 4000);
  for (size_t i = 10; i + 1 < steps.size(); ++i) {
    EXPECT_GE(steps[i].ns, 30 * kMs) << i;
    EXPECT_LE(steps[i].ns, 70 * kMs) << i;
  }
}

TEST(StepTimeModel, WhenTheRestAloneExceedsTheTargetPromptsGetAnEighthOfIt) {
  Machine machine{.base_ns = 80 * kMs, .row_ns = 1 * kMs, .pair_ns = 10};
  Scheduler s({.max_num_batched_tokens = 512});
  Decode(s, machine, 20);
  const auto steps = Prefill(s, machine, 1600);
  for (size_t i = 1; i + 1 < steps.size(); ++i) {
    EXPECT_LE(steps[i].ns - machine.base_ns, 50 * kMs / 8 + 1.1 * kMs) << i;
    EXPECT_GE(steps[i].ns - machine.base_ns, 50 * kMs / 16) << i;
  }
}

TEST(StepTimeModel, ZeroAndHugeTimesAreHarmless) {
  StepTimeModel m;
  PromptWork work;
  work.Add(0, 1);
  for (const int64_t ns : {int64_t{0}, int64_t{-5}, int64_t{1}, int64_t{1} << 62, int64_t{0}}) {
    m.Observe(work, ns);
    m.Observe({}, ns);
    EXPECT_GE(m.base_ns(), 0);
    EXPECT_TRUE(std::isfinite(m.PromptNs(100, 100)));
    EXPECT_GE(m.RowsWithin(1e6, 0), 0);
  }
}

}  // namespace
}  // namespace lynx
