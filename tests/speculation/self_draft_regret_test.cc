// SPDX-License-Identifier: Apache-2.0
// What self-speculation gains and loses on machines whose steps take what they like: answers of 128
// tokens, one after the other, against the same answers without drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "speculation/self_draft_policy.h"

namespace lynx {
namespace {

constexpr int kDraftContext = 1408;
constexpr int kAnswer = 128;

// What steps take, in ms: the weights, a row, 1000 tokens of KV, and attention to them for each of
// the first two rows, and for each later one.
struct Machine {
  const char* name;
  double weights, row, read, pair, later_pair;
  double Ms(int num_rows, int num_attended, double memory) const {
    const double k = num_attended * 1e-3;
    const double pairs = std::min(num_rows, 2) * pair + std::max(0, num_rows - 2) * later_pair;
    return memory * (weights + read * k) + row * num_rows + k * pairs;
  }
};
// As measured at depth 5,300 with one thread; guesses of one without AVX-512 and of two threads.
constexpr Machine kOneThread = {"one thread", 2.6, .2, .75, .1, .24};
constexpr Machine kRowsCost = {"each row costs a step", 5, .7, .6, .9, 1.15};
constexpr Machine kTwoThreads = {"two threads", 1.9, .18, .5, .13, .2};

struct Weather {
  const char* name;
  double noise, outliers;    // of a step: relative, and how many take twice to six times as long
  double slowest, dwell_ms;  // memory takes 1 to so much as long, for such a time
};
constexpr Weather kQuiet = {"quiet", .02, 0, 1, 1e9};
constexpr Weather kGusts = {"gusts", .05, .02, 1.6, 200};
constexpr Weather kTides = {"tides", .05, .02, 1.6, 5000};

// How probably a draft is right where the text is easy and where it is hard, and that it stays so.
struct Text {
  const char* name;
  double easy, hard, stays;
  int num_wrong_first = 0;  // drafts, whatever else is said
};
constexpr Text kSure = {"sure", .985, .9, .97};
constexpr Text kMixed = {"mixed", .985, .6, .97};
constexpr Text kWrong = {"wrong", .4, .3, .97};

class Simulation {
 public:
  Simulation(const Machine& machine, const Weather& weather, unsigned seed)
      : machine_(machine), weather_(weather), random_(seed) {}

  // The time that the answer would take without drafts ÷ with them, at the same rates and without
  // the noise. fixed: always so many drafts.
  double Answer(const Text& text, int depth, int fixed = -1) {
    Rest();
    SelfDraftRecord record;
    double plain_ms = 0, ms = 0;
    int num_wrong = text.num_wrong_first;
    for (int done = 0; done < kAnswer;) {
      const SelfDraftSituation now = {.num_attended = depth + done,
                                      .num_draft_attended = kDraftContext};
      const int most = std::min(kAnswer - done - 1, fixed >= 0 ? fixed : policy.Start(now, record));
      std::vector<float> margins;
      int num_accepted = 0;
      while (static_cast<int>(margins.size()) < most &&
             (margins.empty() || fixed >= 0 || policy.Continue(now, record, margins))) {
        ms += Step(1, kDraftContext);
        const bool right = IsRight(text) && num_wrong == 0;
        num_wrong = std::max(0, num_wrong - 1);
        margins.push_back(static_cast<float>(right ? 4 * Uniform() : Uniform()));
        if (right && num_accepted + 1 == static_cast<int>(margins.size())) ++num_accepted;
      }
      const int num_drafts = static_cast<int>(margins.size());
      ms += Step(num_drafts + 1, now.num_attended);
      plain_ms += (num_accepted + 1) * machine_.Ms(1, now.num_attended, memory_);
      done += num_accepted + 1;
      num_drafted += num_drafts;
      if (num_drafts == 0) {
        policy.ObservePlain(now, record);
      } else {
        const int num_judged = std::min(num_drafts, num_accepted + 1);
        policy.ObserveJudged(now, num_drafts, std::span(margins).first(num_judged), num_accepted,
                             record);
      }
    }
    return plain_ms / ms;
  }

  SelfDraftPolicy policy{std::nullopt};
  int num_drafted = 0;
  double hold_up_draft = 1;  // of the next draft

 private:
  double Uniform() { return static_cast<double>(random_()) / 4294967296.0; }
  bool IsRight(const Text& text) {
    if (Uniform() > text.stays) is_hard_ = !is_hard_;
    return Uniform() < (is_hard_ ? text.hard : text.easy);
  }
  // Between two answers.
  void Rest() {
    now_ms_ += 5000;
    Blow();
  }
  void Blow() {
    if (now_ms_ < turn_ms_) return;
    memory_ = 1 + (weather_.slowest - 1) * Uniform();
    turn_ms_ = now_ms_ - std::log(1 - Uniform()) * weather_.dwell_ms;
  }
  // The policy sees the noise; the answer is what the step takes without it.
  double Step(int num_rows, int num_attended) {
    Blow();
    const double ms = machine_.Ms(num_rows, num_attended, memory_);
    double seen = ms * (1 + weather_.noise * (2 * Uniform() + 2 * Uniform() - 2));
    if (Uniform() < weather_.outliers) seen *= 2 + 4 * Uniform();
    if (num_attended == kDraftContext) seen *= std::exchange(hold_up_draft, 1);
    now_ms_ += seen;
    StepWork work;
    work.Add(num_rows, num_attended);
    policy.ObserveStep(work, static_cast<int64_t>(seen * 1e6));
    return ms;
  }

  const Machine machine_;
  const Weather weather_;
  std::mt19937 random_;
  bool is_hard_ = false;
  double memory_ = 1, now_ms_ = 0, turn_ms_ = 0;
};

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

// Eight answers of a daemon, for many daemons.
std::vector<double> Ratios(const Machine& machine, const Weather& weather, const Text& text,
                           int depth, int fixed = -1) {
  std::vector<double> ratios;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Simulation simulation(machine, weather, seed);
    for (int i = 0; i < 8; ++i) ratios.push_back(simulation.Answer(text, depth, fixed));
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios;
}

// 19 in 20 answers keep 0.98 of the pace without drafts, whatever the weather.
TEST(SelfDraftRegret, IsSmallWhereDraftsDoNotPay) {
  for (const Machine& machine : {kOneThread, kRowsCost, kTwoThreads}) {
    for (const Weather& weather : {kQuiet, kGusts, kTides}) {
      for (const Text& text : {kWrong, kMixed}) {
        for (const int depth : {4000, 5300, 7500}) {
          const std::vector<double> ratios = Ratios(machine, weather, text, depth);
          SCOPED_TRACE(std::string(machine.name) + ", " + weather.name + ", " + text.name + ", " +
                       std::to_string(depth));
          EXPECT_GE(Mean(ratios), 0.99);
          EXPECT_GE(ratios[ratios.size() / 20], 0.98);
          EXPECT_GE(ratios[0], weather.slowest > 1 ? 0.95 : 0.97);
        }
      }
    }
  }
}

TEST(SelfDraftRegret, IsSmallWhereDraftsPay) {
  for (const Machine& machine : {kOneThread, kTwoThreads}) {
    for (const int depth : {5300, 7500}) {
      double best = 1;
      for (int d = 1; d <= SelfDraftPolicy::kMaxDrafts; ++d) {
        best = std::max(best, Mean(Ratios(machine, kQuiet, kSure, depth, d)));
      }
      ASSERT_GT(best, 1.1);
      for (const Weather& weather : {kQuiet, kGusts, kTides}) {
        const std::vector<double> ratios = Ratios(machine, weather, kSure, depth);
        SCOPED_TRACE(std::string(machine.name) + ", " + weather.name + ", " +
                     std::to_string(depth));
        EXPECT_GE(Mean(ratios) - 1, 0.8 * (best - 1)) << best;
        EXPECT_GE(ratios[ratios.size() / 20], 1 + 0.2 * (best - 1)) << best;
      }
    }
  }
}

// As texts of one kind have done: two drafts that are wrong say little against many that were
// right.
TEST(SelfDraftRegret, AnUnluckyBeginningDoesNotEndIt) {
  Text unlucky = kSure;
  unlucky.num_wrong_first = 2;
  Simulation simulation(kOneThread, kQuiet, 3);
  for (int i = 0; i < 3; ++i) simulation.Answer(kSure, 5300);
  const double lucky = simulation.Answer(kSure, 5300);
  EXPECT_GT(lucky, 1.15);
  EXPECT_GT(simulation.Answer(unlucky, 5300), 1 + 0.6 * (lucky - 1));
}

// The first draft ever takes three or six times as long as others do.
TEST(SelfDraftRegret, ATrialThatSomethingHasHeldUpIsRepeated) {
  for (const double hold_up : {3.0, 6.0}) {
    Simulation simulation(kTwoThreads, kQuiet, 1);
    simulation.hold_up_draft = hold_up;
    simulation.Answer(kSure, 7500);
    EXPECT_EQ(simulation.hold_up_draft, 1);
    for (int i = 0; i < 3; ++i) simulation.Answer(kSure, 7500);
    EXPECT_GT(simulation.Answer(kSure, 7500), 1.1) << hold_up;
  }
}

TEST(SelfDraftRegret, TrialsBecomeRareWhereTheyNeverPay) {
  Simulation simulation(kRowsCost, kGusts, 5);
  for (int i = 0; i < 8; ++i) simulation.Answer(kWrong, 5300);
  const int before = simulation.num_drafted;
  for (int i = 0; i < 40; ++i) EXPECT_GT(simulation.Answer(kWrong, 5300), 0.98);
  EXPECT_LE(simulation.num_drafted - before, 12);
}

}  // namespace
}  // namespace lynx
