// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine, stepped by hand over a link whose stages land when told to.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine_fixture.h"

namespace lynx {
namespace {

using Stage = ScriptedLink::Stage;

// Holds stages until the test opens them.
struct Gate {
  bool anchor = true, residual = true, target = true;
  explicit Gate(ScriptedLink& link) {
    link.allow = [this](Stage s) {
      return s == Stage::kAnchor ? anchor : s == Stage::kResidual ? residual : target;
    };
  }
};

std::vector<Request> Mixed(int n) {
  std::vector<Request> requests;
  for (int i = 0; i < n; ++i) {
    requests.push_back(MakeRequest("r" + std::to_string(i), RandomPrompt(1 + 41 * i, 100 + i),
                                   5 + 7 * i, i % 3 == 0 ? 0 : 0.8f, i));
    if (i % 4 == 1) requests.back().sampling.frequency_penalty = 0.7f;
  }
  return requests;
}

TEST(Handoff, OneRequestHasEveryEvent) {
  Pair pair;
  Gate gate(pair.link);
  gate.residual = gate.target = false;
  const Request r = MakeRequest("a", RandomPrompt(150, 1), 30, 0.8f, 3);
  pair.Submit(r);
  pair.StepTimes(12);
  EXPECT_EQ(pair.clients["a"].tokens.size(), 1u) << "token 1 needs no KV, drafts are not text";
  gate.residual = gate.target = true;
  pair.RunAll();
  const Received& got = pair.clients["a"];
  EXPECT_EQ(got.tokens, Alone(r));
  const Timeline& t = got.last.timeline;
  int64_t previous = 0;
  for (const Event e :
       {Event::kArrived, Event::kScheduled, Event::kPrefillStarted, Event::kFirstToken,
        Event::kFirstDraft, Event::kVerified, Event::kFinished}) {
    EXPECT_GT(t.at(e), 0) << static_cast<int>(e);
    EXPECT_GE(t.at(e), previous);
    previous = t.at(e);
  }
  for (const Event e :
       {Event::kAnchorLanded, Event::kResidualLanded, Event::kTargetLanded, Event::kRefined}) {
    EXPECT_GT(t.at(e), 0) << static_cast<int>(e);
  }
  EXPECT_EQ(t.num_handoffs, 1);
  EXPECT_GT(t.num_drafted, 0);
  EXPECT_EQ(t.stage_bytes, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(pair.remote.num_landed, 1);
  EXPECT_EQ(pair.decode->stats().prompt_tokens_transferred, 150);
  EXPECT_EQ(pair.decode->stats().prompt_tokens_computed, 0);
  pair.ExpectNoLeak();
}

TEST(Handoff, AnEngineThatWaitsForBytesIsNotStuck) {
  Pair pair;
  Gate gate(pair.link);
  gate.anchor = gate.residual = gate.target = false;
  pair.Submit(MakeRequest("a", RandomPrompt(150, 1), 30, 0, 3));
  pair.StepTimes(12);
  const int64_t before = pair.decode->stats().last_progress_ns;
  pair.StepTimes(3);
  EXPECT_GT(pair.decode->stats().last_progress_ns, before);
  gate.anchor = gate.residual = gate.target = true;
  pair.RunAll();
}

TEST(Handoff, AShortCommonStartDoesNotWaitForTheOthersTransfer) {
  for (const int common : {100, 1000}) {
    Pair pair;
    Gate gate(pair.link);
    gate.anchor = gate.residual = gate.target = false;
    Request a = MakeRequest("a", RandomPrompt(1000, 1), 5, 0, 3);
    Request b = MakeRequest("b", RandomPrompt(1000, 2), 5, 0, 3);
    std::copy_n(a.prompt_ids.begin(), common, b.prompt_ids.begin());
    pair.Submit(a);
    pair.StepTimes(2);
    pair.Submit(b);
    pair.StepTimes(60);
    EXPECT_EQ(pair.clients["a"].tokens.size(), 1u);
    EXPECT_EQ(pair.clients["b"].tokens.size(), common == 100 ? 1u : 0u);
    gate.anchor = gate.residual = gate.target = true;
    pair.RunAll();
    EXPECT_EQ(pair.clients["a"].tokens, Alone(a));
    EXPECT_EQ(pair.clients["b"].tokens, Alone(b));
    pair.ExpectNoLeak();
  }
}

// N6 over the whole matrix.
TEST(Handoff, TextIsTheColocatedText) {
  const std::vector<Request> requests = Mixed(10);
  std::vector<std::vector<TokenId>> want;
  for (const Request& r : requests) want.push_back(Alone(r));
  int rejected = 0, accepted = 0;
  for (const bool speculation : {true, false}) {
    for (const int chunk : {20, 200}) {
      for (const bool one_stage : {false, true}) {
        for (const int local : {0, 128}) {
          EngineOptions options = SmallOptions();
          options.speculation = speculation;
          options.max_num_batched_tokens = chunk;
          options.max_local_prefill_length = local;
          Pair pair(options, options);
          pair.link.one_stage = one_stage;
          pair.link.anchor_bits = 2;
          // The later stages land after a while, so that drafts are made.
          int asked = 0;
          pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 9 == 0; };
          for (const Request& r : requests) pair.Submit(r);
          pair.RunAll();
          for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(pair.clients[requests[i].id].tokens, want[i])
                << "request " << i << " speculation " << speculation << " chunk " << chunk
                << " one_stage " << one_stage << " local " << local;
          }
          const EngineStats s = pair.decode->stats();
          accepted += s.accepted_tokens;
          rejected += s.draft_tokens - s.accepted_tokens;
          EXPECT_EQ(s.draft_tokens > 0, speculation && !one_stage);
          pair.ExpectNoLeak();
        }
      }
    }
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(rejected, 10);
}

// Which blocks are refined when a draft reads them is a matter of time; the text is not.
TEST(Handoff, TextDoesNotDependOnWhatWasRefinedWhen) {
  const std::vector<Request> requests = Mixed(8);
  std::vector<std::vector<TokenId>> want;
  for (const Request& r : requests) want.push_back(Alone(r));
  int num_early_blocks = 0, num_reads = 0, num_drafts = 0;
  for (int round = 0; round < 8; ++round) {
    std::mt19937 rng(round);
    EngineOptions options = SmallOptions();
    options.verify = round % 2 == 0 ? VerifyMode::kResidual : VerifyMode::kSource;
    options.max_num_seqs = 5;
    Pair pair(options, options);
    pair.link.anchor_bits = 2;
    pair.link.refine_early = true;
    pair.link.may_read = [&] { return rng() % 3 != 0; };
    pair.link.allow = [&](Stage s) { return rng() % (s == Stage::kTarget ? 25 : 3) == 0; };
    for (const Request& r : requests) pair.Submit(r);
    pair.RunAll();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(pair.clients[requests[i].id].tokens, want[i]) << i << " round " << round;
    }
    num_early_blocks += pair.link.num_early_blocks;
    num_reads += pair.link.num_reads;
    num_drafts += pair.decode->stats().draft_tokens;
    pair.ExpectNoLeak();
  }
  EXPECT_GT(num_early_blocks, 20);
  EXPECT_GT(num_reads, 20);
  EXPECT_GT(num_drafts, 100);
}

TEST(Handoff, WhoDraftsNothingLeavesItsBlocksToTheReceiver) {
  Pair pair;
  pair.link.refine_early = true;
  Gate gate(pair.link);
  gate.anchor = gate.residual = gate.target = false;
  pair.Submit(MakeRequest("a", RandomPrompt(300, 2), 60));
  pair.StepTimes(20);
  gate.anchor = true;
  pair.StepTimes(3);
  const int before = pair.link.num_early_blocks;
  EXPECT_EQ(pair.link.num_reads, 1);
  EXPECT_LE(before, 2);
  pair.StepTimes(5);
  EXPECT_EQ(pair.link.num_early_blocks, before) << "drafts read them";
  pair.StepTimes(30);
  EXPECT_EQ(pair.decode->stats().draft_tokens, 12);
  EXPECT_EQ(pair.link.num_early_blocks, 5) << "the pause is used";
  gate.residual = gate.target = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(MakeRequest("a", RandomPrompt(300, 2), 60)));
  pair.ExpectNoLeak();
}

TEST(Handoff, WhatHasLandedWithTokenOneIsNotDraftedOn) {
  for (const bool one_stage : {false, true}) {
    Pair pair;
    pair.link.one_stage = one_stage;
    const Received got = pair.Run(MakeRequest("a", RandomPrompt(300, 2), 20));
    EXPECT_EQ(got.tokens, Alone(MakeRequest("a", RandomPrompt(300, 2), 20)));
    EXPECT_EQ(pair.decode->stats().draft_tokens, 0);
    EXPECT_EQ(pair.decode_model.num_forwards, 19) << "one row a step from token 1 on";
  }
}

// verify: auto. With the whole target for an anchor nothing comes after it.
TEST(Handoff, TheRateOfALinkThatCarriesAnchorsAloneIsLearnt) {
  EngineOptions options = SmallOptions();
  options.verify = VerifyMode::kAuto;
  Pair pair(options, options);
  pair.link.one_stage = true;
  pair.link.bytes_per_second = 6;  // what a transfer here has
  const auto estimated_s = [&](const std::string& id, int seed) {
    const Received got = pair.Run(MakeRequest(id, RandomPrompt(300, seed), 20));
    return static_cast<double>(got.last.timeline.estimated_residual_ns) * 1e-9;
  };
  EXPECT_EQ(estimated_s("a", 2), 0) << "not known yet";
  EXPECT_NEAR(estimated_s("b", 3), 1, 0.01);
  pair.link.bytes_per_second = 0.6;
  for (int i = 0; i < 20; ++i) estimated_s(absl::StrCat("c", i), 4 + i);
  EXPECT_NEAR(estimated_s("d", 30), 10, 0.1);
}

// verify: auto. The prefill side begins nothing that the target would overtake.
TEST(Handoff, ThePrefillSideStopsAtTokenOneWhenTheTransferIsAsGoodAsOver) {
  constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
  for (const int64_t left_ns : {int64_t{0}, kHourNs}) {
    EngineOptions options = SmallOptions();
    options.verify = VerifyMode::kAuto;
    Pair pair(options, options);
    pair.link.left_ns = left_ns;
    Gate gate(pair.link);
    gate.target = false;
    const Request r = MakeRequest("a", RandomPrompt(300, 2), 20, 0.8f, 1);
    pair.Submit(r);
    pair.StepTimes(15);
    gate.target = true;
    pair.RunAll();
    EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
    EXPECT_EQ(pair.prefill->stats().source_tokens > 0, left_ns == kHourNs);
    pair.ExpectNoLeak();
  }
}

TEST(Handoff, ALongVerificationRunsInPieces) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 5;
  options.max_num_seqs = 2;
  options.max_draft_tokens = 40;
  options.min_draft_survival = 0;
  Pair pair(options);
  pair.link.anchor_bits = 7;  // an exact anchor: every draft is right
  Gate gate(pair.link);
  gate.target = false;
  const Request r = MakeRequest("a", RandomPrompt(100, 2), 60);
  pair.Submit(r);
  pair.StepTimes(120);
  gate.target = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_EQ(pair.clients["a"].last.timeline.num_drafted, 40);
  EXPECT_EQ(pair.clients["a"].last.timeline.num_accepted, 40);
  pair.ExpectNoLeak();
}

TEST(Handoff, DraftingPausesAndPromotes) {
  Pair pair;
  Gate gate(pair.link);
  gate.target = false;
  pair.Submit(MakeRequest("limit", RandomPrompt(100, 2), 60));
  pair.Submit(MakeRequest("length", RandomPrompt(100, 3), 4));
  pair.StepTimes(60);
  EXPECT_LE(pair.decode->stats().draft_tokens, 12 + 3);
  EXPECT_EQ(pair.link.num_promoted, 2);
  const int64_t forwards = pair.decode_model.num_forwards;
  pair.StepTimes(20);
  EXPECT_EQ(pair.decode_model.num_forwards, forwards) << "a paused sequence costs nothing";
  gate.target = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["length"].tokens, Alone(MakeRequest("length", RandomPrompt(100, 3), 4)));
  pair.ExpectNoLeak();
}

TEST(Handoff, ADraftedStopTokenEndsNothingByItself) {
  const Request plain = MakeRequest("a", RandomPrompt(100, 2), 40, 1.0f, 5);
  const auto text = Alone(plain);
  Request r = plain;
  r.sampling.stop_token_ids = {text[4]};
  Pair pair;
  pair.link.anchor_bits = 7;
  Gate gate(pair.link);
  gate.target = false;
  pair.Submit(r);
  pair.StepTimes(40);
  EXPECT_FALSE(pair.clients["a"].finished);
  EXPECT_LE(pair.decode->stats().draft_tokens, 4);
  gate.target = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_EQ(pair.clients["a"].last.finish_reason, FinishReason::kStop);
  pair.ExpectNoLeak();
}

TEST(Handoff, DraftsAreShownAndRevoked) {
  EngineOptions options = SmallOptions();
  options.min_draft_survival = 0;
  Pair pair(options);
  pair.link.anchor_bits = 1;
  Gate gate(pair.link);
  for (int i = 0; i < 6; ++i) {
    gate.target = false;
    Request r = MakeRequest("d" + std::to_string(i), RandomPrompt(120, i), 30, 0.9f, i);
    r.show_drafts = true;
    pair.Submit(r);
    pair.StepTimes(30);
    const Received& got = pair.clients[r.id];
    EXPECT_EQ(got.tokens.size(), 1u);
    EXPECT_EQ(got.num_shown, 12);
    gate.target = true;
    pair.RunAll();
    EXPECT_EQ(got.tokens, Alone(r));
    EXPECT_TRUE(got.drafts.empty()) << "every draft was accepted or revoked";
    EXPECT_EQ(got.num_shown - got.num_revoked, got.last.timeline.num_accepted);
  }
  EXPECT_GT(pair.clients["d0"].num_revoked + pair.clients["d1"].num_revoked, 0);
  pair.ExpectNoLeak();
}

TEST(Handoff, AFullyCachedPromptMovesNothing) {
  Pair pair;
  const Request r = MakeRequest("a", RandomPrompt(128, 4), 10);
  const auto want = Alone(r);
  EXPECT_EQ(pair.Run(r).tokens, want);
  Request again = r;
  again.id = "b";
  const Received b = pair.Run(again);
  EXPECT_EQ(b.tokens, want);
  EXPECT_EQ(pair.link.num_zero_transfers, 1);
  EXPECT_EQ(pair.link.tokens_moved, 128);
  EXPECT_EQ(b.num_cached_tokens, 64) << "what the prefill side had";
  // A longer prompt with the same beginning moves only what is new.
  Request longer = r;
  longer.id = "c";
  const auto more = RandomPrompt(50, 9);
  longer.prompt_ids.insert(longer.prompt_ids.end(), more.begin(), more.end());
  EXPECT_EQ(pair.Run(longer).tokens, Alone(longer));
  EXPECT_EQ(pair.link.tokens_moved, 128 + 50);
  pair.ExpectNoLeak();
}

TEST(Handoff, PrefillSideHitsAreHandedOverAtOnce) {
  EngineOptions forgetful = SmallOptions();
  forgetful.enable_prefix_caching = false;
  Pair pair(forgetful);
  Request r = MakeRequest("a", RandomPrompt(200, 4), 5);
  EXPECT_EQ(pair.Run(r).num_cached_tokens, 0);
  r.id = "b";
  const Received b = pair.Run(r);
  EXPECT_EQ(b.num_cached_tokens, 192);
  EXPECT_EQ(b.tokens, Alone(r));
  EXPECT_EQ(pair.link.tokens_moved, 400);
  pair.ExpectNoLeak();
}

TEST(Handoff, EqualPromptsAreHandedOverOnce) {
  EngineOptions options = SmallOptions();
  options.max_local_prefill_length = 64;
  Pair pair(options);
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(MakeRequest("n" + std::to_string(i), RandomPrompt(300, 4), 9, 0.9f, i));
    pair.Submit(requests.back());
  }
  pair.RunAll();
  for (const Request& r : requests) EXPECT_EQ(pair.clients[r.id].tokens, Alone(r));
  EXPECT_EQ(pair.remote.num_started, 1);
  EXPECT_EQ(pair.decode->stats().local_prefills, 3);
  pair.ExpectNoLeak();
}

TEST(Handoff, LossyHandoffsStayOutOfThePrefixCache) {
  EngineOptions options = SmallOptions();
  options.exact_handoff = false;
  Pair pair(options);
  pair.Run(MakeRequest("a", RandomPrompt(200, 4), 80));
  EXPECT_EQ(pair.decode->stats().blocks_cached, 0);
  pair.ExpectNoLeak();
}

TEST(Handoff, FirstTokenAfterTheKvIsWaitedFor) {
  Pair pair;
  pair.remote.swallow_first_token = true;
  pair.Submit(MakeRequest("a", RandomPrompt(100, 4), 10));
  pair.StepTimes(30);
  EXPECT_EQ(pair.link.num_refined, 1);
  EXPECT_TRUE(pair.clients["a"].tokens.empty());
  pair.decode->Cancel("a");
  pair.RunAll();
  pair.ExpectNoLeak();
}

TEST(Handoff, LogprobsTravelWithTheFirstToken) {
  Pair pair;
  Request r = MakeRequest("a", RandomPrompt(100, 4), 10);
  r.sampling.num_logprobs = 2;
  r.sampling.num_prompt_logprobs = 1;
  const Received want = Colocated().Run(r);
  const Received got = pair.Run(r);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.num_prompt_logprob_reports, 1);
  ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size());
  for (size_t i = 1; i < want.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(got.prompt_logprobs[i]->logprob, want.prompt_logprobs[i]->logprob);
  }
  for (size_t i = 0; i < want.outputs.size(); ++i) {
    EXPECT_EQ(got.outputs[i].logprob, want.outputs[i].logprob);
    EXPECT_EQ(got.outputs[i].top.size(), 2u);
  }
}

// ---- failures -----------------------------------------------------------------------------------

TEST(Handoff, ALostLinkMeansAnotherAttempt) {
  for (const int when : {1, 3, 6, 12, 25}) {
    Pair pair;
    Gate gate(pair.link);
    gate.target = false;
    Request r = MakeRequest("a", RandomPrompt(150, 4), 20, 0.8f, when);
    r.show_drafts = true;
    pair.Submit(r);
    pair.StepTimes(when);
    pair.link.FailAll();
    pair.StepTimes(20);
    EXPECT_LE(pair.clients["a"].tokens.size(), 2u);
    gate.target = true;
    pair.RunAll();
    EXPECT_EQ(pair.clients["a"].tokens, Alone(r)) << when;
    EXPECT_TRUE(pair.clients["a"].drafts.empty());
    pair.ExpectNoLeak();
  }
}

// Both are news of the same step: all of it is here, and the daemon that sent it is gone.
TEST(Handoff, APrefillDaemonIsNotMissedOnceAllHasLanded) {
  Pair pair;
  Gate gate(pair.link);
  gate.target = false;
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
  pair.Submit(r);
  pair.StepTimes(8);
  EXPECT_GT(pair.decode->stats().draft_tokens, 0);
  gate.target = true;
  pair.link.Pump();
  pair.remote.Break(absl::UnavailableError("gone"));
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_EQ(pair.remote.num_started, 1);
  pair.ExpectNoLeak();
}

TEST(Handoff, AFailedAttemptPausesBeforeTheNext) {
  EngineOptions options = SmallOptions();
  options.retry_backoff_ms = 100;
  Pair pair(options);
  Gate gate(pair.link);
  gate.target = false;
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
  pair.Submit(r);
  pair.StepTimes(3);
  pair.link.FailAll();
  gate.target = true;
  pair.StepTimes(50);
  EXPECT_FALSE(pair.clients.AllFinished());
  EXPECT_EQ(pair.decode->stats().remote_prefills, 1);
  pair.clock_ns += 100'000'000;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_EQ(pair.decode->stats().remote_prefills, 2);
  pair.ExpectNoLeak();
}

TEST(Handoff, TheLastAttemptsFailureIsTheAnswer) {
  Pair pair;
  Gate gate(pair.link);
  gate.target = false;
  pair.Submit(MakeRequest("a", RandomPrompt(150, 4), 20));
  for (int i = 0; i < 3; ++i) {
    pair.StepTimes(30);
    EXPECT_FALSE(pair.clients["a"].finished);
    pair.link.FailAll();
  }
  pair.RunAll();
  const Received& got = pair.clients["a"];
  EXPECT_EQ(got.last.error.code(), absl::StatusCode::kDataLoss) << "a client sees 502";
  EXPECT_EQ(got.tokens, [] {
    auto text = Alone(MakeRequest("a", RandomPrompt(150, 4), 20));
    text.resize(3);
    return text;
  }()) << "one verified token per attempt, no draft";
  EXPECT_EQ(pair.remote.num_started, 3);
  EXPECT_EQ(pair.decode->stats().transfers_failed, 3);
  pair.ExpectNoLeak();
}

TEST(Handoff, ARefusalOfThePromptIsFinal) {
  Pair pair;
  pair.remote.refuse_with = absl::InvalidArgumentError("too long for me");
  const Received got = pair.Run(MakeRequest("a", RandomPrompt(150, 4), 20));
  EXPECT_EQ(got.last.error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(got.tokens.empty());
  EXPECT_EQ(pair.remote.num_started, 1);
  pair.ExpectNoLeak();
}

TEST(Handoff, AFirstReportThatCannotBeIsAFailureOfTheAttempt) {
  for (const int num_cached_tokens : {-1, 151, std::numeric_limits<int>::min()}) {
    Pair pair;
    pair.remote.tamper = [&](RemotePrefillEvent& event) {
      if (pair.remote.num_started == 1) event.num_cached_tokens = num_cached_tokens;
    };
    const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
    EXPECT_EQ(pair.Run(r).tokens, Alone(r));
    EXPECT_EQ(pair.clients["a"].last.timeline.num_handoffs, 2);
    EXPECT_EQ(pair.clients["a"].num_cached_tokens, 128);
    pair.ExpectNoLeak();
  }
}

TEST(Handoff, ACancelThatTheTransferTellsFirstIsNoError) {
  EngineOptions prefill = SmallOptions();
  prefill.max_num_batched_tokens = 20;
  Pair pair(SmallOptions(), prefill);
  pair.remote.lose_cancels = true;
  pair.Submit(MakeRequest("a", RandomPrompt(150, 4), 20));
  pair.StepTimes(3);
  pair.decode->Cancel("a");
  pair.RunAll();
  EXPECT_EQ(pair.prefill->stats().finished_abort, 1);
  EXPECT_EQ(pair.prefill->stats().finished_error, 0);
  pair.ExpectNoLeak();
}

TEST(Handoff, ABusyPrefillDaemonIsTriedAgain) {
  Pair pair;
  pair.remote.refuse_with = absl::UnavailableError("going down");
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
  pair.Submit(r);
  pair.StepTimes(1);
  pair.remote.refuse_with = absl::OkStatus();
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_EQ(pair.clients["a"].last.timeline.num_handoffs, 2);
  pair.ExpectNoLeak();
}

TEST(Handoff, NoPrefillDaemonIsWaitedForButNotForEver) {
  Pair pair;
  pair.remote.usable = false;
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
  pair.Submit(r);
  pair.StepTimes(20);
  EXPECT_FALSE(pair.clients["a"].finished);
  pair.remote.usable = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));

  pair.remote.usable = false;
  pair.Submit(MakeRequest("b", RandomPrompt(151, 5), 20));
  pair.StepTimes(3);
  pair.clock_ns += 11'000'000'000;
  pair.StepTimes(2);
  EXPECT_EQ(pair.clients["b"].last.error.code(), absl::StatusCode::kUnavailable);
  pair.ExpectNoLeak();
}

TEST(Handoff, CancelInEveryStateTwice) {
  for (int when = 0; when < 40; ++when) {
    Pair pair;
    int asked = 0;
    pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked > 12; };
    pair.Submit(MakeRequest("a", RandomPrompt(150, 4), 25, 0.8f, 1));
    pair.StepTimes(when);
    pair.decode->Cancel("a");
    pair.decode->Cancel("a");
    pair.RunAll();
    EXPECT_TRUE(pair.clients["a"].last.finish_reason == FinishReason::kAbort ||
                pair.clients["a"].tokens.size() == 25);
    pair.ExpectNoLeak();
  }
}

// A cancelled attempt may still write into its blocks; another request must not own them yet.
TEST(Handoff, BlocksOfACancelledTransferAreNotGivenOut) {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 7;  // one request takes 4
  Pair pair(options);
  Gate gate(pair.link);
  gate.target = false;
  pair.Submit(MakeRequest("a", RandomPrompt(200, 4), 25));
  pair.StepTimes(15);
  pair.link.slow_ends = true;
  pair.decode->Cancel("a");
  const Request b = MakeRequest("b", RandomPrompt(210, 5), 25);
  pair.Submit(b);
  pair.StepTimes(30);
  EXPECT_TRUE(pair.clients["a"].finished);
  EXPECT_EQ(pair.decode->stats().blocks_transfer, 4);
  EXPECT_TRUE(pair.clients["b"].tokens.empty());
  gate.target = true;
  pair.link.slow_ends = false;
  pair.RunAll();
  EXPECT_EQ(pair.clients["b"].tokens, Alone(b));
  pair.ExpectNoLeak();
}

TEST(Handoff, SmallPoolsOnBothSidesDoNotDeadlock) {
  for (const int blocks : {6, 7, 8}) {  // a request needs 4 to 5: 1.2 to 1.6 requests
    EngineOptions options = SmallOptions();
    options.num_kv_blocks = blocks;
    Pair pair(options, options);
    int asked = 0;
    pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 7 == 0; };
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) {
      requests.push_back(
          MakeRequest("s" + std::to_string(i), RandomPrompt(170 + 7 * i, i), 70, 0.8f, i));
      pair.Submit(requests.back());
    }
    pair.RunAll();
    for (const Request& r : requests) EXPECT_EQ(pair.clients[r.id].tokens, Alone(r));
    pair.ExpectNoLeak();
  }
}

// A pair whose decode side is about to preempt "a" in favour of "b", which is urgent and grows.
class Crowded : public Pair {
 public:
  explicit Crowded(int prompt_length)
      : Pair(Options()), a(MakeRequest("a", RandomPrompt(prompt_length, 1), 150, 0.8f, 1)) {}

  void UntilPreempted() {
    Request b = MakeRequest("b", RandomPrompt(30, 2), 220, 0.8f, 2);
    b.priority = -1;
    Submit(b);
    for (int i = 0; i < 500 && decode->stats().num_preemptions == 0; ++i) Step();
    ASSERT_EQ(decode->stats().num_preemptions, 1);
    ASSERT_FALSE(clients["a"].finished);
  }

  const Request a;

 private:
  static EngineOptions Options() {
    EngineOptions options = SmallOptions();
    options.num_kv_blocks = 5;
    options.enable_prefix_caching = false;
    options.max_local_prefill_length = 40;
    options.queue_timeout_s = 300;
    return options;
  }
};

TEST(Handoff, AHandOffThatSucceedsEndsTheCountOfThoseThatFailed) {
  Crowded c(100);
  Gate gate(c.link);
  gate.target = false;
  c.Submit(c.a);
  for (int i = 0; i < 2; ++i) {
    c.StepTimes(5);
    c.link.FailAll();
  }
  gate.target = true;
  for (int i = 0; i < 200 && c.clients["a"].tokens.size() < 20; ++i) c.Step();
  EXPECT_EQ(c.remote.num_started, 3);
  EXPECT_EQ(c.remote.last_failed_at, (std::vector{1, 2}));
  EXPECT_TRUE(absl::IsUnavailable(c.remote.last_failure)) << "others are warned";
  c.UntilPreempted();
  for (int i = 0; i < 500 && c.remote.num_started < 4; ++i) c.Step();
  EXPECT_TRUE(c.remote.last_failed_at.empty());
  c.link.FailAll();
  c.RunAll();
  EXPECT_EQ(c.remote.num_started, 5);
  EXPECT_EQ(c.clients["a"].tokens, Alone(c.a));
  c.ExpectNoLeak();
}

// Its turn has come long ago: that a prefill daemon is busy now is no end of its time in a queue.
TEST(Handoff, ABusyPrefillDaemonDoesNotEndAnAnswerThatHasBegun) {
  Crowded c(100);
  c.Submit(c.a);
  for (int i = 0; i < 200 && c.clients["a"].tokens.size() < 20; ++i) c.Step();
  c.UntilPreempted();
  c.clock_ns += 400'000'000'000;
  c.remote.refuse_with = absl::ResourceExhaustedError("the waiting queue is full");
  for (int i = 0; i < 500 && c.remote.num_started < 2; ++i) c.Step();
  c.remote.refuse_with = absl::OkStatus();
  c.RunAll();
  EXPECT_EQ(c.clients["a"].tokens, Alone(c.a));
  EXPECT_TRUE(c.remote.last_failure.ok()) << "nobody else is warned";
  EXPECT_EQ(c.decode->stats().queue_timeouts, 0);
  c.ExpectNoLeak();
}

// The time for which a prefill daemon is waited for begins when one is needed.
TEST(Handoff, WhoNeededNoPrefillDaemonWaitsForOneLater) {
  Crowded c(30);
  c.remote.usable = false;
  c.Submit(c.a);
  for (int i = 0; i < 200 && c.clients["a"].tokens.size() < 20; ++i) c.Step();
  c.clock_ns += 11'000'000'000;
  c.UntilPreempted();
  c.StepTimes(3);
  EXPECT_FALSE(c.clients["a"].finished) << c.clients["a"].last.error;
  c.remote.usable = true;
  c.RunAll();
  EXPECT_EQ(c.clients["a"].tokens, Alone(c.a));
  c.ExpectNoLeak();
}

TEST(Handoff, PreemptionAfterAHandoffRecomputesOrHandsOverAgain) {
  for (const int local : {0, 80}) {
    EngineOptions options = SmallOptions();
    options.num_kv_blocks = 14;
    options.max_draft_tokens = 4;
    options.max_local_prefill_length = local;
    Pair pair(options);
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) {
      requests.push_back(MakeRequest("p" + std::to_string(i), RandomPrompt(100, i), 150, 0.8f, i));
      pair.Submit(requests.back());
    }
    pair.RunAll();
    for (const Request& r : requests) EXPECT_EQ(pair.clients[r.id].tokens, Alone(r));
    EXPECT_GT(pair.decode->stats().num_preemptions, 0);
    pair.ExpectNoLeak();
  }
}

TEST(Handoff, TwoHundredRequestsWithThirtyPercentCancelled) {
  std::mt19937 rng(7);
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 30;
  options.max_waiting = 400;
  options.max_local_prefill_length = 40;
  Pair pair(options, options);
  pair.link.allow = [&](Stage s) { return rng() % (s == Stage::kTarget ? 9 : 3) == 0; };
  struct Planned {
    Request request;
    int cancel_at = -1;
  };
  std::vector<Planned> planned;
  for (int i = 0; i < 200; ++i) {
    Planned p{MakeRequest("x" + std::to_string(i),
                          RandomPrompt(1 + static_cast<int>(rng() % 250), rng() % 60),
                          1 + static_cast<int>(rng() % 40), i % 2 == 0 ? 0 : 0.8f, i)};
    if (rng() % 10 < 3) p.cancel_at = static_cast<int>(rng() % 900);
    planned.push_back(std::move(p));
  }
  size_t submitted = 0;
  for (int step = 0; step < 20000; ++step) {
    if (submitted < planned.size() && step % 3 == 0) pair.Submit(planned[submitted++].request);
    for (const Planned& p : planned) {
      if (p.cancel_at == step) pair.decode->Cancel(p.request.id);
    }
    if (step % 150 == 149) pair.link.FailAll();
    pair.Step();
    if (submitted == planned.size() && pair.clients.AllFinished()) break;
  }
  EXPECT_TRUE(pair.clients.AllFinished());
  pair.ExpectNoLeak();
  int whole = 0;
  for (const Planned& p : planned) {
    const Received& got = pair.clients[p.request.id];
    const auto want = Alone(p.request);
    ASSERT_LE(got.tokens.size(), want.size());
    EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.begin())) << p.request.id;
    whole += got.tokens.size() == want.size();
  }
  EXPECT_GT(whole, 100);
}

TEST(Handoff, APrefillEngineTakesNoRequestsAndRefusesNonsense) {
  Pair pair;
  absl::Status status;
  pair.prefill->Submit(MakeRequest("a", {30}, 3), [&](EngineOutput o) { status = o.error; });
  pair.prefill->Step();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  RemotePrefillRequest job;
  job.prompt_ids = {30, 31};
  job.num_cached_tokens = 5;
  absl::Status refused;
  pair.prefill->SubmitPrefill(job, [&](RemotePrefillEvent e) { refused = e.error; });
  pair.prefill->Step();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lynx
