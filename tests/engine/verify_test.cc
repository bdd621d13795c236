// SPDX-License-Identifier: Apache-2.0
// verify: source, hold and auto: final tokens from the prefill side before the target has landed.
#include <algorithm>

#include "engine_fixture.h"

namespace lynx {
namespace {

using Stage = ScriptedLink::Stage;

constexpr VerifyMode kModes[] = {VerifyMode::kResidual, VerifyMode::kSource, VerifyMode::kHold,
                                 VerifyMode::kAuto};
constexpr VerifyMode kAskingModes[] = {VerifyMode::kSource, VerifyMode::kHold, VerifyMode::kAuto};

EngineOptions Options(VerifyMode mode) {
  EngineOptions options = SmallOptions();
  options.verify = mode;
  return options;
}

// Greedy and sampled ones, some with penalties, minimum lengths or stop tokens in their text.
std::vector<Request> Mixed(int n) {
  std::vector<Request> requests;
  for (int i = 0; i < n; ++i) {
    Request r = MakeRequest("r" + std::to_string(i), RandomPrompt(1 + 31 * i, 300 + i), 5 + 6 * i,
                            i % 3 == 0 ? 0 : 0.8f, i);
    if (i % 4 == 1) r.sampling.frequency_penalty = 0.7f;
    if (i % 4 == 2) r.sampling.repetition_penalty = 1.2f;
    if (i % 5 == 3) r.sampling.stop_token_ids = {Alone(r)[3 + i]};
    if (i % 5 == 4) {
      r.sampling.min_tokens = 8;
      r.sampling.stop_token_ids = {Alone(r)[4]};
    }
    requests.push_back(std::move(r));
  }
  return requests;
}

std::vector<std::vector<TokenId>> TextsAlone(const std::vector<Request>& requests) {
  std::vector<std::vector<TokenId>> texts;
  for (const Request& r : requests) texts.push_back(Alone(r));
  return texts;
}

// N6 over the matrix; later stages land after a while, so that there is something to verify.
TEST(Verify, TextIsTheColocatedText) {
  const std::vector<Request> requests = Mixed(12);
  const auto want = TextsAlone(requests);
  for (const VerifyMode mode : kModes) {
    for (const int chunk : {7, 96}) {
      for (const int anchor_bits : {1, 3, 7}) {
        EngineOptions options = Options(mode);
        options.max_num_batched_tokens = chunk;
        Pair pair(options, options);
        pair.link.anchor_bits = anchor_bits;
        int asked = 0;
        pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 40 == 0; };
        for (const Request& r : requests) pair.Submit(r);
        pair.RunAll();
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(pair.clients[requests[i].id].tokens, want[i])
              << "request " << i << " " << Name(mode) << " chunk " << chunk << " anchor bits "
              << anchor_bits;
        }
        const EngineStats s = pair.decode->stats();
        EXPECT_EQ(s.source_tokens > 0, mode != VerifyMode::kResidual) << Name(mode);
        EXPECT_EQ(s.source_refusals, 0);
        EXPECT_TRUE(mode != VerifyMode::kHold || s.draft_tokens == 0);
        pair.ExpectNoLeak();
      }
    }
  }
}

// Nothing after the anchor ever lands: the prefill side writes the whole answer.
TEST(Verify, AnAnswerCanEndBeforeTheTargetLands) {
  const std::vector<Request> requests = Mixed(12);
  const auto want = TextsAlone(requests);
  for (const VerifyMode mode : kAskingModes) {
    for (const bool anchor : {true, false}) {
      if (!anchor && mode == VerifyMode::kSource) continue;  // nothing to draft on
      Pair pair(Options(mode), Options(mode));
      pair.link.allow = [&](Stage s) { return s == Stage::kAnchor && anchor; };
      for (const Request& r : requests) pair.Submit(r);
      pair.RunAll();
      for (size_t i = 0; i < requests.size(); ++i) {
        const Received& got = pair.clients[requests[i].id];
        EXPECT_EQ(got.tokens, want[i]) << i << " " << Name(mode);
        EXPECT_EQ(got.last.timeline.at(Event::kTargetLanded), 0);
      }
      EXPECT_EQ(pair.link.num_refined, 0);
      EXPECT_EQ(pair.decode->stats().num_preemptions, 0);
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, TheTimelineTellsWhoVouchedForWhat) {
  for (const VerifyMode mode : kAskingModes) {
    Pair pair(Options(VerifyMode::kResidual));
    pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
    Request r = MakeRequest("a", RandomPrompt(150, 1), 30, 0.8f, 3);
    r.verify = mode;
    r.sampling.num_logprobs = 2;
    r.show_drafts = true;
    const Received want = Colocated().Run(r);
    const Received got = pair.Run(r);
    EXPECT_EQ(got.tokens, want.tokens);
    for (size_t i = 0; i < want.outputs.size(); ++i) {
      EXPECT_EQ(got.outputs[i].logprob, want.outputs[i].logprob);
      EXPECT_EQ(got.outputs[i].top.size(), 2u);
    }
    EXPECT_TRUE(got.drafts.empty()) << "every draft was accepted or revoked";
    const Timeline& t = got.last.timeline;
    EXPECT_EQ(t.verify, mode == VerifyMode::kHold ? VerifyMode::kHold : VerifyMode::kSource);
    EXPECT_EQ(t.num_source_tokens, 29);
    EXPECT_GT(t.at(Event::kSourceVerified), t.at(Event::kFirstToken));
    EXPECT_EQ(t.at(Event::kVerified), 0);
    EXPECT_EQ(t.num_verify_rounds, pair.remote.num_rounds);
    // In kAuto the prefill side, which keeps up here, is left to go on.
    EXPECT_EQ(t.num_verify_rounds > 0, mode == VerifyMode::kSource);
    EXPECT_EQ(t.estimated_source_ns > 0, mode == VerifyMode::kAuto);
    ASSERT_EQ(t.provisional_ns.size(), t.token_ns.size());
    int num_early = 0;
    for (size_t i = 0; i < t.token_ns.size(); ++i) {
      EXPECT_LE(t.provisional_ns[i], t.token_ns[i]);
      num_early += t.provisional_ns[i] < t.token_ns[i];
    }
    EXPECT_EQ(num_early, t.num_accepted);
    pair.ExpectNoLeak();
  }
}

// The target lands while rounds are open and drafts are left over.
TEST(Verify, TheTargetMayLandAtAnyMoment) {
  const Request r = MakeRequest("a", RandomPrompt(130, 2), 60, 0.8f, 5);
  const auto want = Alone(r);
  for (const VerifyMode mode : kAskingModes) {
    for (int when = 4; when < 40; ++when) {
      Pair pair(Options(mode), Options(mode));
      pair.link.anchor_bits = 1 + when % 3;
      bool open = false;
      pair.link.allow = [&](Stage s) { return s == Stage::kAnchor || open; };
      pair.Submit(r);
      pair.StepTimes(when);
      open = true;
      pair.RunAll();
      EXPECT_EQ(pair.clients["a"].tokens, want) << Name(mode) << " " << when;
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, WithoutRoomOnThePrefillSideTheTargetIsWaitedFor) {
  for (const VerifyMode mode : kAskingModes) {
    for (const int spare : {0, 1}) {
      EngineOptions prefill = Options(mode);
      prefill.num_kv_blocks = 2 + spare;  // the prompt takes two; one more lasts for 63 tokens
      Pair pair(Options(mode), prefill);
      bool open = false;
      pair.link.allow = [&](Stage s) { return s == Stage::kAnchor || open; };
      const Request r = MakeRequest("a", RandomPrompt(120, 2), 150, 0.8f, 5);
      pair.Submit(r);
      pair.StepTimes(400);
      const Received& got = pair.clients["a"];
      EXPECT_FALSE(got.finished);
      EXPECT_EQ(got.tokens.size() > 1, spare == 1) << Name(mode);
      EXPECT_LE(got.tokens.size(), 73u);
      open = true;
      pair.RunAll();
      EXPECT_EQ(got.tokens, Alone(r)) << Name(mode) << " " << spare;
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, AnAttemptThatCannotIsCountedOnce) {
  Pair pair(Options(VerifyMode::kHold));
  pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
  pair.remote.tamper = [](RemotePrefillEvent& event) {
    if (!event.verified.empty()) event.cannot_verify = true;
  };
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 20);
  EXPECT_EQ(pair.Run(r).tokens, Alone(r));
  EXPECT_EQ(pair.decode->stats().source_refusals, 1);
  pair.ExpectNoLeak();
}

// Their KV and log-probabilities are there with token 1.
TEST(Verify, WhatFollowsTokenOneNeedsNoRowsOfThePrompt) {
  Pair pair(Options(VerifyMode::kHold));
  pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
  size_t num_rows = 0, num_logit_rows = 0;
  pair.prefill_model.on_forward = [&](const ForwardBatch& batch) {
    if (pair.clients["a"].tokens.empty()) return;
    num_rows = std::max(num_rows, batch.tokens.size());
    num_logit_rows = std::max(num_logit_rows, batch.logit_rows.size());
  };
  Request r = MakeRequest("a", RandomPrompt(120, 4), 20);
  r.sampling.num_prompt_logprobs = 1;
  const Received got = pair.Run(r);
  EXPECT_EQ(got.tokens, Alone(r));
  EXPECT_EQ(got.prompt_logprobs.size(), 120u);
  EXPECT_EQ(num_rows, 1u);
  EXPECT_EQ(num_logit_rows, 1u);
  pair.ExpectNoLeak();
}

TEST(Verify, SmallPoolsOnBothSidesDoNotDeadlock) {
  for (const VerifyMode mode : kAskingModes) {
    for (const int blocks : {6, 8}) {
      EngineOptions options = Options(mode);
      options.num_kv_blocks = blocks;
      Pair pair(options, options);
      int asked = 0;
      pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 30 == 0; };
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
}

// Beyond, the target is waited for; and no prompt waits for another one's answer.
TEST(Verify, ThePrefillSideVouchesForAsManyAnswersAsItHasSeats) {
  for (const VerifyMode mode : kAskingModes) {
    for (const int seats : {1, 2}) {
      EngineOptions decode = Options(mode), prefill = Options(mode);
      prefill.max_num_seqs = seats;
      Pair pair(decode, prefill);
      bool open = false;
      pair.link.allow = [&](Stage s) { return s == Stage::kAnchor || open; };
      std::vector<Request> requests;
      for (int i = 0; i < 5; ++i) {
        requests.push_back(MakeRequest("s" + std::to_string(i), RandomPrompt(150, i), 40, 0.8f, i));
        pair.Submit(requests.back());
      }
      pair.StepTimes(300);
      int num_vouched_for = 0;
      for (const Request& r : requests) {
        EXPECT_GE(pair.clients[r.id].tokens.size(), 1u) << Name(mode) << " " << r.id;
        num_vouched_for += pair.clients[r.id].tokens.size() > 1 ? 1 : 0;
      }
      EXPECT_GE(num_vouched_for, seats) << Name(mode);
      EXPECT_GT(pair.prefill->stats().source_refusals, 0) << Name(mode);
      EXPECT_GT(pair.decode->stats().draft_tokens, 0) << Name(mode) << ": refused ones draft";
      open = true;
      pair.RunAll();
      for (const Request& r : requests) {
        EXPECT_EQ(pair.clients[r.id].tokens, Alone(r)) << Name(mode);
      }
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, ALossyHandoffIsNeverJudgedByExactKv) {
  EngineOptions options = Options(VerifyMode::kSource);
  options.exact_handoff = false;
  Pair pair(options);
  const Received got = pair.Run(MakeRequest("a", RandomPrompt(150, 1), 30));
  EXPECT_EQ(got.last.timeline.verify, VerifyMode::kResidual);
  EXPECT_EQ(got.last.timeline.num_source_tokens, 0);
  pair.ExpectNoLeak();
}

TEST(Verify, AContinuedAnswerGoesOn) {
  const Request whole = MakeRequest("a", RandomPrompt(150, 1), 30, 0.8f, 3);
  const auto text = Alone(whole);
  for (const VerifyMode mode : kAskingModes) {
    Pair pair(Options(mode));
    pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
    Request rest = whole;
    rest.sampling.frequency_penalty = 0;
    rest.emitted_ids.assign(text.begin(), text.begin() + 11);
    EXPECT_EQ(pair.Run(rest).tokens, std::vector(text.begin() + 11, text.end())) << Name(mode);
    pair.ExpectNoLeak();
  }
}

// ---- failures -----------------------------------------------------------------------------------

TEST(Verify, ALostPeerMeansAnotherAttemptWithWhatIsFinal) {
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 40, 0.8f, 7);
  const auto want = Alone(r);
  for (const VerifyMode mode : kAskingModes) {
    for (int when = 1; when < 30; when += 2) {
      Pair pair(Options(mode), Options(mode));
      pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
      pair.Submit(r);
      pair.StepTimes(when);
      const size_t num_final = pair.clients["a"].tokens.size();
      pair.link.FailAll();
      pair.RunAll();
      const Received& got = pair.clients["a"];
      EXPECT_EQ(got.tokens, want) << Name(mode) << " " << when;
      EXPECT_EQ(got.last.timeline.num_handoffs > 1, num_final < 40) << when;
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, CancelInEveryPhase) {
  for (const VerifyMode mode : kAskingModes) {
    for (int when = 0; when < 30; ++when) {
      Pair pair(Options(mode), Options(mode));
      pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
      pair.Submit(MakeRequest("a", RandomPrompt(150, 4), 60, 0.8f, 1));
      pair.StepTimes(when);
      pair.decode->Cancel("a");
      pair.RunAll();
      EXPECT_EQ(pair.clients["a"].last.finish_reason, FinishReason::kAbort);
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, ARoundThatIsNeverAnsweredCostsNothingButTime) {
  Pair pair(Options(VerifyMode::kSource));
  pair.remote.lose_rounds = true;
  bool open = false;
  pair.link.allow = [&](Stage s) { return s == Stage::kAnchor || open; };
  const Request r = MakeRequest("a", RandomPrompt(150, 4), 40);
  pair.Submit(r);
  pair.StepTimes(60);
  EXPECT_EQ(pair.clients["a"].tokens.size(), 2u);
  open = true;
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  pair.ExpectNoLeak();
}

TEST(Verify, ReportsThatCannotBeAreAFailureOfTheAttempt) {
  for (const bool wrong_position : {true, false}) {
    Pair pair(Options(VerifyMode::kSource));
    pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
    bool tampered = false;
    pair.remote.tamper = [&](RemotePrefillEvent& event) {
      if (event.verified.empty() || tampered) return;
      tampered = true;
      (wrong_position ? event.position : event.verified.front().id) += 1000;
    };
    const Request r = MakeRequest("a", RandomPrompt(150, 4), 40);
    const Received got = pair.Run(r);
    EXPECT_EQ(got.tokens, Alone(r));
    EXPECT_EQ(got.last.timeline.num_handoffs, 2);
    pair.ExpectNoLeak();
  }
}

TEST(Verify, ThePrefillSideRefusesRoundsItCannotAnswer) {
  Pair pair(Options(VerifyMode::kSource));
  pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
  RemotePrefillRequest job;
  job.attempt = {1, 2};
  job.prompt_ids = RandomPrompt(70, 1);
  job.sampling.max_tokens = 40;
  job.verify = VerifyMode::kSource;
  std::vector<RemotePrefillEvent> events;
  pair.prefill->SubmitPrefill(job, [&](RemotePrefillEvent e) { events.push_back(std::move(e)); });
  const auto ask = [&](AttemptId attempt, int position, std::vector<TokenId> drafts) {
    events.clear();
    pair.prefill->Verify({.attempt = attempt, .position = position, .drafts = std::move(drafts)});
    for (int i = 0; i < 3; ++i) pair.prefill->Step();
    return events.empty() ? RemotePrefillEvent() : events.back();
  };
  for (int i = 0; i < 4; ++i) pair.prefill->Step();
  ASSERT_EQ(events.size(), 2u) << "token 1, and token 2 once the job has its own block";
  EXPECT_EQ(events[1].position, 71);
  const TokenId second = events[1].verified.front().id;
  EXPECT_TRUE(ask({1, 2}, 72, {FakeModel::kVocab}).cannot_verify);
  EXPECT_TRUE(ask({1, 2}, 72, {-1}).cannot_verify);
  EXPECT_TRUE(ask({1, 2}, 73, {30}).cannot_verify) << "beyond the end";
  EXPECT_TRUE(ask({1, 2}, 70, {30}).cannot_verify) << "token 1 is no draft";
  EXPECT_TRUE(ask({1, 2}, 72, {}).cannot_verify);
  EXPECT_FALSE(ask({3, 4}, 72, {30}).round_over) << "an attempt that is not known";
  // What has been answered meanwhile is not answered twice.
  const RemotePrefillEvent late = ask({1, 2}, 71, {second});
  EXPECT_TRUE(late.round_over && !late.cannot_verify && late.verified.empty());
  const RemotePrefillEvent answer = ask({1, 2}, 71, {second, 30, 31});
  EXPECT_TRUE(answer.round_over);
  EXPECT_EQ(answer.position, 72);
  EXPECT_GE(answer.verified.size(), 1u);
  pair.prefill->CancelPrefill({1, 2});
  pair.ExpectNoLeak();
}

// Rounds that come while a step runs: the last one is judged, and only that is answered.
TEST(Verify, ALongerRoundTakesThePlaceOfOneThatWaits) {
  Pair pair(Options(VerifyMode::kSource));
  const Request r = MakeRequest("a", RandomPrompt(70, 1), 40);
  const auto text = Alone(r);
  RemotePrefillRequest job;
  job.attempt = {1, 2};
  job.prompt_ids = r.prompt_ids;
  job.sampling = r.sampling;
  job.verify = VerifyMode::kSource;
  std::vector<RemotePrefillEvent> events;
  pair.prefill->SubmitPrefill(job, [&](RemotePrefillEvent e) { events.push_back(std::move(e)); });
  for (int i = 0; i < 4; ++i) pair.prefill->Step();
  ASSERT_EQ(events.size(), 2u);
  const auto send = [&](uint32_t round, int num_drafts) {
    pair.prefill->Verify({.attempt = job.attempt,
                          .round = round,
                          .position = 72,
                          .drafts = {text.begin() + 2, text.begin() + 2 + num_drafts}});
  };
  send(1, 1);
  send(2, 4);
  for (int i = 0; i < 3; ++i) pair.prefill->Step();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_TRUE(events[2].round_over && !events[2].cannot_verify);
  EXPECT_EQ(events[2].round, 2u);
  ASSERT_EQ(events[2].verified.size(), 5u);
  EXPECT_EQ(events[2].verified.back().id, text[6]);
  // The first was served just before the second came: what is left of that is judged.
  send(3, 8);
  for (int i = 0; i < 3; ++i) pair.prefill->Step();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3].round, 3u);
  EXPECT_EQ(events[3].position, 77);
  EXPECT_EQ(events[3].verified.size(), 4u);
  pair.prefill->CancelPrefill(job.attempt);
  pair.ExpectNoLeak();
}

// The decode side takes many steps in one of the prefill side's.
TEST(Verify, ABusyPrefillSideGetsLongRounds) {
  const Request r = MakeRequest("a", RandomPrompt(150, 1), 60, 0.8f, 3);
  Pair pair(Options(VerifyMode::kSource));
  pair.link.anchor_bits = 7;
  pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
  pair.Submit(r);
  int num_prefill_steps = 0;
  while (!pair.clients.AllFinished() && num_prefill_steps < 200) {
    pair.prefill->Step();
    ++num_prefill_steps;
    pair.link.Pump();
    for (int i = 0; i < 12; ++i) pair.decode->Step();
  }
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  EXPECT_LT(num_prefill_steps, 25) << "about eight tokens a round";
  EXPECT_EQ(pair.decode->stats().source_refusals, 0);
  pair.ExpectNoLeak();
}

// Drafts help a prefill side that is slow or busy; one that goes on at their pace needs none.
TEST(Verify, APrefillSideThatKeepsUpIsSentNoDrafts) {
  const Request r = MakeRequest("a", RandomPrompt(130, 2), 60, 0.8f, 5);
  for (const int decode_steps : {1, 12}) {
    Pair pair(Options(VerifyMode::kAuto), Options(VerifyMode::kAuto));
    pair.link.anchor_bits = 7;
    pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
    pair.Submit(r);
    for (int step = 0; step < 200 && !pair.clients.AllFinished(); ++step) {
      pair.prefill->Step();
      pair.link.Pump();
      for (int i = 0; i < decode_steps; ++i) pair.decode->Step();
    }
    EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
    // One or two at the start, before it has said that it goes on.
    EXPECT_EQ(pair.remote.num_rounds > 2, decode_steps > 1) << pair.remote.num_rounds;
    pair.ExpectNoLeak();
  }
}

TEST(Verify, APrefillSideThatNoLongerGoesOnIsSentDrafts) {
  EngineOptions prefill = Options(VerifyMode::kAuto);
  prefill.max_num_batched_tokens = 16;
  Pair pair(Options(VerifyMode::kAuto), prefill);
  pair.link.anchor_bits = 7;
  pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
  const Request r = MakeRequest("a", RandomPrompt(130, 2), 100, 0.8f, 5);
  pair.Submit(r);
  while (pair.clients["a"].tokens.size() < 10) pair.Step();
  const int num_rounds = pair.remote.num_rounds;
  pair.Submit(MakeRequest("b", RandomPrompt(240, 3), 1, 0.8f, 5));
  pair.StepTimes(20);
  EXPECT_GT(pair.remote.num_rounds, num_rounds);
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  pair.ExpectNoLeak();
}

// Until drafts come: one row more in each step of the prompts.
TEST(Verify, ABusyPrefillSideGoesOnUntilItIsAsked) {
  EngineOptions prefill = Options(VerifyMode::kAuto);
  prefill.max_num_batched_tokens = 16;
  Pair pair(Options(VerifyMode::kAuto), prefill);
  bool anchor = false;
  pair.link.anchor_bits = 7;
  pair.link.allow = [&](Stage s) { return s == Stage::kAnchor && anchor; };
  const Request r = MakeRequest("a", RandomPrompt(130, 2), 100, 0.8f, 5);
  pair.Submit(r);
  while (pair.clients["a"].tokens.empty()) pair.Step();
  for (int i = 0; i < 8; ++i) {
    pair.Submit(MakeRequest("b" + std::to_string(i), RandomPrompt(240, 3 + i), 1, 0.8f, 5));
  }
  pair.StepTimes(20);
  const size_t num_final = pair.clients["a"].tokens.size();
  EXPECT_GT(num_final, 15u);
  EXPECT_EQ(pair.remote.num_rounds, 0);
  anchor = true;
  pair.StepTimes(20);
  EXPECT_GT(pair.remote.num_rounds, 0);
  EXPECT_GT(pair.clients["a"].tokens.size(), num_final + 20) << "more than a row brings";
  pair.RunAll();
  EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
  pair.ExpectNoLeak();
}

// Prompts come before a crowd of answers: here a step takes as long with them as without.
TEST(Verify, ABusyPrefillSideGoesOnForFew) {
  EngineOptions prefill = Options(VerifyMode::kAuto);
  prefill.max_num_batched_tokens = 16;
  int64_t clock_ns = 0;
  prefill.clock_ns = [&] { return clock_ns; };
  Pair pair(Options(VerifyMode::kAuto), prefill);
  pair.prefill_model.on_forward = [&](const ForwardBatch&) { clock_ns += 1000; };
  pair.link.allow = [](Stage) { return false; };
  for (const char* id : {"a", "c"}) {
    pair.Submit(MakeRequest(id, RandomPrompt(130, id[0]), 100, 0.8f, 5));
    while (pair.clients[id].tokens.size() < 2) pair.Step();
  }
  for (int i = 0; i < 8; ++i) {
    pair.Submit(MakeRequest("b" + std::to_string(i), RandomPrompt(240, 3 + i), 1, 0.8f, 5));
  }
  pair.StepTimes(5);
  const size_t first = pair.clients["a"].tokens.size(), second = pair.clients["c"].tokens.size();
  pair.StepTimes(20);
  EXPECT_GE(pair.clients["a"].tokens.size(), first + 15);
  EXPECT_LE(pair.clients["c"].tokens.size(), second + 1);
  pair.link.allow = [](Stage) { return true; };
  pair.RunAll();
  pair.ExpectNoLeak();
}

TEST(Verify, WhereAnswersComeSlowlyTheTargetIsUrgent) {
  const Request r = MakeRequest("a", RandomPrompt(130, 2), 60, 0.8f, 5);
  for (const VerifyMode mode : {VerifyMode::kSource, VerifyMode::kAuto}) {
    for (const bool slow : {false, true}) {
      EngineOptions decode = Options(mode);
      decode.max_draft_tokens = 64;
      decode.anchors.candidates = {{.name = "k4v2", .planes = {1}, .prior_error = 0.06}};
      Pair pair(decode, Options(mode));
      pair.link.anchor_bits = 7;
      pair.link.allow = [](Stage s) { return s == Stage::kAnchor; };
      pair.remote.tamper = [&](RemotePrefillEvent& event) { event.step_ns = slow ? 1'000'000 : 1; };
      pair.Submit(r);
      while (pair.clients["a"].tokens.size() < 10) pair.Step();
      EXPECT_EQ(pair.link.num_promoted, slow && mode == VerifyMode::kSource ? 1 : 0)
          << Name(mode) << ": a side that goes on by itself is not slow";
      pair.RunAll();
      EXPECT_EQ(pair.clients["a"].tokens, Alone(r));
      pair.ExpectNoLeak();
    }
  }
}

TEST(Verify, TwoHundredRequestsWithFaultsAndCancels) {
  std::mt19937 rng(11);
  EngineOptions options = Options(VerifyMode::kAuto);
  options.num_kv_blocks = 30;
  options.max_waiting = 400;
  options.max_local_prefill_length = 40;
  Pair pair(options, options);
  pair.link.allow = [&](Stage s) { return rng() % (s == Stage::kTarget ? 25 : 3) == 0; };
  std::vector<Request> requests;
  std::map<int, std::vector<std::string>> cancels;
  for (int i = 0; i < 200; ++i) {
    Request r = MakeRequest("x" + std::to_string(i),
                            RandomPrompt(1 + static_cast<int>(rng() % 250), rng() % 60),
                            1 + static_cast<int>(rng() % 40), i % 2 == 0 ? 0 : 0.8f, i);
    r.verify = kModes[i % 4];
    if (rng() % 10 < 3) cancels[static_cast<int>(rng() % 900)].push_back(r.id);
    requests.push_back(std::move(r));
  }
  size_t submitted = 0;
  for (int step = 0; step < 20000; ++step) {
    if (submitted < requests.size() && step % 3 == 0) pair.Submit(requests[submitted++]);
    for (const std::string& id : cancels[step]) pair.decode->Cancel(id);
    if (step % 150 == 149) pair.link.FailAll();
    pair.Step();
    if (submitted == requests.size() && pair.clients.AllFinished()) break;
  }
  EXPECT_TRUE(pair.clients.AllFinished());
  pair.ExpectNoLeak();
  int whole = 0;
  for (const Request& r : requests) {
    const auto& got = pair.clients[r.id].tokens;
    const auto want = Alone(r);
    ASSERT_LE(got.size(), want.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << r.id;
    whole += got.size() == want.size();
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(pair.decode->stats().source_tokens, 100);
}

}  // namespace
}  // namespace lynx
