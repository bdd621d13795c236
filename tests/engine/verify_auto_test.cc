// SPDX-License-Identifier: Apache-2.0
// verify: auto against the modes that it chooses among, in simulated time: on both sides a step of
// one row takes 11 ms and another row 3.6, so a step full of prompt rows takes 350, as SmolLM2-135M
// does on one core at a depth of 7,500.
#include <algorithm>
#include <map>
#include <optional>

#include "engine_fixture.h"

namespace lynx {
namespace {

using Stage = ScriptedLink::Stage;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kRtt = 200'000;
constexpr int kNumTokens = 60;

EngineOptions Options(VerifyMode mode, std::function<int64_t()> clock) {
  EngineOptions options = SmallOptions();
  options.verify = mode;
  options.max_draft_tokens = 64;
  options.min_draft_survival = 0.05;
  options.num_kv_blocks = 200;
  options.clock_ns = std::move(clock);
  options.anchors.candidates = {{.name = "k4v2", .planes = {1}, .prior_error = 0.06}};
  return options;
}

struct Situation {
  bool busy = false;      // two clients send the prefill side prompts without a pause
  int64_t anchor_ms = 0;  // from token 1 until it lands
  int64_t target_ms = 0;
  double promoted_share = 1;  // of what is left of the target's way, once it goes first
  int anchor_bits = 2;        // its quality
  int prefill_slowness = 1;   // steps of the prefill side in such ones of the decode side
};

// One request on two machines, each with a clock of its own that runs on with the work.
class Simulation {
 public:
  Simulation(VerifyMode mode, const Situation& now)
      : now_(now), pair_(Options(mode, nullptr), Options(mode, [this] { return prefill_ns_; })) {
    pair_.link.anchor_bits = now.anchor_bits;
    pair_.link.allow = [this](Stage stage) { return MayLand(stage); };
    pair_.prefill_model.on_forward = [this](const ForwardBatch& batch) {
      prefill_ns_ += now_.prefill_slowness * StepNs(batch);
    };
    pair_.decode_model.on_forward = [this](const ForwardBatch& batch) {
      pair_.clock_ns += StepNs(batch);
    };
    if (now.busy) {
      for (int client = 0; client < 2; ++client) SendPrompt();
    }
  }

  // Milliseconds from token 1 to the token that follows it, and so on.
  std::vector<double> Run(const Request& request) {
    first_ns_ = pair_.link.num_promoted = pair_.decode_model.max_rows = 0;
    promoted_ns_.reset();
    pair_.Submit(request);
    const Received& got = pair_.clients[request.id];
    const int64_t limit_ns = pair_.clock_ns + 100'000 * kMs;
    while (!got.finished && pair_.clock_ns < limit_ns) {
      if (prefill_ns_ + kRtt <= pair_.clock_ns) {
        const bool progress = pair_.prefill->Step();
        if (!progress) prefill_ns_ = pair_.clock_ns;
      } else {
        pair_.link.Pump();
        if (!pair_.decode->Step()) pair_.clock_ns += kRtt;
      }
      if (first_ns_ == 0 && !got.tokens.empty()) first_ns_ = pair_.clock_ns;
    }
    EXPECT_EQ(got.tokens, Alone(request));
    num_drafted_ = got.last.timeline.num_drafted;
    std::vector<double> ms;
    const auto& at = got.last.timeline.token_ns;
    for (int64_t ns : at) ms.push_back(static_cast<double>(ns - at[0]) / kMs);
    ms.erase(ms.begin());
    return ms;
  }

  // Of the last run: drafts that were made, and the most rows of a step of the decode side.
  int num_drafted() const { return num_drafted_; }
  int most_rows() const { return pair_.decode_model.max_rows; }

 private:
  static int64_t StepNs(const ForwardBatch& batch) {
    return 7'400'000 + 3'600'000 * static_cast<int64_t>(batch.tokens.size());
  }
  bool MayLand(Stage stage) {
    if (first_ns_ == 0) return false;
    if (stage == Stage::kAnchor) return pair_.clock_ns >= first_ns_ + now_.anchor_ms * kMs;
    int64_t landed_ns = first_ns_ + now_.target_ms * kMs;
    if (pair_.link.num_promoted > 0 && !promoted_ns_) promoted_ns_ = pair_.clock_ns;
    if (promoted_ns_) {
      landed_ns =
          *promoted_ns_ + static_cast<int64_t>(now_.promoted_share *
                                               static_cast<double>(landed_ns - *promoted_ns_));
    }
    return pair_.clock_ns >= landed_ns;
  }
  void SendPrompt() {
    RemotePrefillRequest job;
    job.attempt = {++num_prompts_, 77};
    job.prompt_ids = RandomPrompt(300, 900 + num_prompts_);
    job.sampling.max_tokens = 1;
    pair_.prefill->SubmitPrefill(job, [this, attempt = job.attempt](RemotePrefillEvent event) {
      if (!event.first_token) return;
      pair_.prefill->CancelPrefill(attempt);
      SendPrompt();
    });
  }

  const Situation now_;
  int64_t prefill_ns_ = 1;
  int64_t first_ns_ = 0;
  std::optional<int64_t> promoted_ns_;
  uint32_t num_prompts_ = 0;
  int num_drafted_ = 0;
  Pair pair_;
};

Request Question(int i) {
  return MakeRequest("a" + std::to_string(i), RandomPrompt(130, 70 + i), kNumTokens, 0.8f, i);
}

// Means over a few prompts, after one from which the decode side has learnt what rows cost.
std::vector<double> MeanMs(VerifyMode mode, const Situation& now) {
  constexpr int kNumPrompts = 4;
  std::vector<double> mean(kNumTokens - 1);
  Simulation simulation(mode, now);
  simulation.Run(Question(0));
  for (int i = 1; i <= kNumPrompts; ++i) {
    const std::vector<double> ms = simulation.Run(Question(i));
    for (size_t k = 0; k < mean.size(); ++k) mean[k] += ms.at(k) / kNumPrompts;
  }
  return mean;
}

TEST(VerifyAuto, IsAboutAsGoodAsTheBestOfTheOthers) {
  for (const bool busy : {false, true}) {
    for (const int anchor_bits : {1, 3}) {
      const Situation now{.busy = busy,
                          .anchor_ms = 800,
                          .target_ms = 2800,
                          .promoted_share = busy ? 0.8 : 1,
                          .anchor_bits = anchor_bits};
      std::map<VerifyMode, std::vector<double>> ms;
      for (const VerifyMode mode :
           {VerifyMode::kResidual, VerifyMode::kSource, VerifyMode::kHold, VerifyMode::kAuto}) {
        ms[mode] = MeanMs(mode, now);
      }
      for (const int k : {1, 2, 8, 32, 59}) {
        const auto at = [&](VerifyMode mode) { return ms[mode][k - 1]; };
        const double best =
            std::min({at(VerifyMode::kResidual), at(VerifyMode::kSource), at(VerifyMode::kHold)});
        EXPECT_LE(at(VerifyMode::kAuto), 1.1 * best) << k << " busy " << busy << " " << anchor_bits;
      }
    }
  }
}

// They would save less than their rows take in the step that judges them.
TEST(VerifyAuto, NothingIsDraftedWhileThePrefillSideKeepsUp) {
  Simulation equal(VerifyMode::kAuto, {.anchor_ms = 20, .target_ms = 2000, .anchor_bits = 7});
  Simulation slow(VerifyMode::kAuto,
                  {.anchor_ms = 20, .target_ms = 2000, .anchor_bits = 7, .prefill_slowness = 4});
  for (int i = 0; i < 2; ++i) {  // from the first one step times are known
    equal.Run(Question(i));
    slow.Run(Question(i));
  }
  // Before it has said that it goes on, and until its step of a whole block's rows is forgotten.
  EXPECT_LE(equal.num_drafted(), kNumTokens / 3);
  EXPECT_GE(slow.num_drafted(), kNumTokens / 2);
}

TEST(VerifyAuto, DoubtfulDraftsAreLeftOutWhenTheTargetLands) {
  Simulation simulation(VerifyMode::kResidual,
                        {.anchor_ms = 100, .target_ms = 2000, .anchor_bits = 0});
  constexpr int kNumLessons = 60;  // in which the drafts prove to be often wrong
  for (int i = 0; i < kNumLessons; ++i) simulation.Run(Question(i));
  int num_drafted = 0, num_judged = 0;
  for (int i = kNumLessons; i < kNumLessons + 5; ++i) {
    simulation.Run(Question(i));
    num_drafted += simulation.num_drafted();
    num_judged += simulation.most_rows() - 2;
  }
  EXPECT_GT(num_judged, 0);
  EXPECT_LT(num_judged, num_drafted / 2);
}

}  // namespace
}  // namespace lynx
