// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <future>
#include <thread>

#include "engine_fixture.h"

namespace lynx {
namespace {

TEST(Colocated, EndsByLengthWithATimeline) {
  Colocated c;
  const Received r = c.Run(MakeRequest("a", RandomPrompt(100, 1), 20));
  EXPECT_EQ(r.tokens.size(), 20u);
  EXPECT_EQ(r.last.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(r.last.error.ok());
  EXPECT_EQ(r.num_cached_tokens, 0);
  const Timeline& t = r.last.timeline;
  EXPECT_EQ(t.token_ns.size(), 20u);
  EXPECT_LE(t.at(Event::kArrived), t.at(Event::kScheduled));
  EXPECT_LE(t.at(Event::kPrefillStarted), t.at(Event::kFirstToken));
  EXPECT_LE(t.at(Event::kFirstToken), t.at(Event::kFinished));
  EXPECT_EQ(t.at(Event::kAnchorLanded), 0);
  EXPECT_EQ(c.engine->stats().blocks_request, 0);
  EXPECT_EQ(c.engine->stats().generation_tokens, 20);
}

TEST(Colocated, TextDependsOnEveryPartOfThePrompt) {
  auto prompt = RandomPrompt(150, 1);
  const auto text = Alone(MakeRequest("a", prompt, 20));
  for (int at : {100, 140, 149}) {
    auto other = prompt;
    other[at] = other[at] == 30 ? 31 : 30;
    EXPECT_NE(Alone(MakeRequest("a", other, 20)), text) << at;
  }
}

// N6: alone or in any batch, any chunk size, any number of sequences, cache or not.
TEST(Colocated, TextDoesNotDependOnCompanyOrChunks) {
  std::vector<Request> requests;
  std::vector<std::vector<TokenId>> want;
  for (int i = 0; i < 10; ++i) {
    requests.push_back(MakeRequest("r" + std::to_string(i), RandomPrompt(5 + 37 * i, i), 10 + 5 * i,
                                   i % 2 == 0 ? 0 : 0.8f, i));
    want.push_back(Alone(requests.back()));
  }
  for (const int budget : {17, 64, 512}) {
    for (const bool cache : {false, true}) {
      EngineOptions options = SmallOptions();
      options.max_num_batched_tokens = budget;
      options.enable_prefix_caching = cache;
      Colocated c(options);
      for (const Request& r : requests) c.Submit(r);
      c.RunAll();
      for (int i = 0; i < 10; ++i) EXPECT_EQ(c.clients[requests[i].id].tokens, want[i]) << i;
    }
  }
}

TEST(Colocated, StopTokenAndEosAreToldApart) {
  const auto text = Alone(MakeRequest("a", RandomPrompt(30, 3), 30, 1.0f, 4));
  Request request = MakeRequest("a", RandomPrompt(30, 3), 30, 1.0f, 4);
  request.sampling.stop_token_ids = {text[10]};
  const size_t first = std::find(text.begin(), text.end(), text[10]) - text.begin();
  const Received r = Colocated().Run(request);
  EXPECT_EQ(r.tokens, std::vector(text.begin(), text.begin() + first + 1));
  EXPECT_EQ(r.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(r.last.stop_token, text[10]);

  Request eos = MakeRequest("b", RandomPrompt(30, 3), 30);
  eos.sampling.stop_token_ids = {FakeModel::kEos};
  eos.sampling.logit_bias = {{FakeModel::kEos, 100.f}};
  const Received e = Colocated().Run(eos);
  EXPECT_EQ(e.tokens, std::vector<TokenId>{FakeModel::kEos});
  EXPECT_EQ(e.last.finish_reason, FinishReason::kStop);
  EXPECT_FALSE(e.last.stop_token);

  eos.id = "c";
  eos.sampling.min_tokens = 5;
  EXPECT_EQ(Colocated().Run(eos).tokens.size(), 6u);
}

TEST(Colocated, APrefixHitStillComputesTheLastToken) {
  Colocated c;
  const auto prompt = RandomPrompt(128, 5);
  const auto want = Alone(MakeRequest("x", prompt, 12));
  EXPECT_EQ(c.Run(MakeRequest("a", prompt, 12)).tokens, want);
  const int64_t rows = c.fake.num_rows;
  const Received b = c.Run(MakeRequest("b", prompt, 12));
  EXPECT_EQ(b.tokens, want);
  EXPECT_EQ(b.num_cached_tokens, 64);
  EXPECT_EQ(c.fake.num_rows - rows, 64 + 11);
}

TEST(Colocated, DecodedBlocksEnterThePrefixCache) {
  Colocated c;
  auto prompt = RandomPrompt(60, 5);
  const Received a = c.Run(MakeRequest("a", prompt, 80));
  // A second turn of the conversation.
  prompt.insert(prompt.end(), a.tokens.begin(), a.tokens.end());
  prompt.push_back(50);
  const Received b = c.Run(MakeRequest("b", prompt, 8));
  EXPECT_EQ(b.num_cached_tokens, 128);
  EXPECT_EQ(b.tokens, Alone(MakeRequest("b", prompt, 8)));
}

TEST(Colocated, EqualPromptsAreComputedOnce) {
  Colocated c;
  const auto prompt = RandomPrompt(300, 6);
  std::vector<std::vector<TokenId>> want;
  for (int i = 0; i < 4; ++i) {
    const Request r = MakeRequest("n" + std::to_string(i), prompt, 10, 0.9f, i);
    want.push_back(Alone(r));
    c.Submit(r);
  }
  c.engine->Step();
  EXPECT_EQ(c.engine->stats().num_waiting, 3);
  EXPECT_EQ(c.engine->stats().num_deferred, 3);
  c.RunAll();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(c.clients["n" + std::to_string(i)].tokens, want[i]);
  const EngineStats stats = c.engine->stats();
  EXPECT_EQ(stats.prompt_tokens_computed, 300 + 3 * (300 - 256));
  EXPECT_EQ(stats.num_deferred, 0);
  EXPECT_EQ(stats.step_rows, stats.prompt_tokens_computed + stats.generation_tokens - 4);
  EXPECT_EQ(*std::rbegin(stats.step_rows_le), stats.num_steps);
  EXPECT_NE(want[0], want[1]);
}

TEST(Colocated, SaltsDoNotShare) {
  Colocated c;
  Request r = MakeRequest("a", RandomPrompt(130, 6), 4);
  c.Run(r);
  r.id = "b";
  r.cache_salt = "tenant";
  EXPECT_EQ(c.Run(r).num_cached_tokens, 0);
}

TEST(Colocated, PreemptionDoesNotChangeText) {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 6;  // each needs 4 in the end
  Colocated c(options);
  std::vector<std::vector<TokenId>> want;
  for (int i = 0; i < 8; ++i) {
    const Request r = MakeRequest("p" + std::to_string(i), RandomPrompt(90, i), 120, 0.7f, i);
    want.push_back(Alone(r));
    c.Submit(r);
  }
  c.RunAll();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(c.clients["p" + std::to_string(i)].tokens, want[i]) << i;
  EXPECT_GT(c.engine->stats().num_preemptions, 0);
  EXPECT_EQ(c.engine->stats().blocks_request, 0);
}

TEST(Colocated, PenaltiesCountPromptAndOutput) {
  Request r = MakeRequest("a", RandomPrompt(40, 8), 60);
  r.sampling.frequency_penalty = 2;
  r.sampling.repetition_penalty = 1.3f;
  const auto text = Alone(r);
  EXPECT_NE(text, Alone(MakeRequest("a", RandomPrompt(40, 8), 60)));
  // Fail-over in the middle: the emitted tokens are output, and what follows is the same.
  Request rest = r;
  rest.emitted_ids.assign(text.begin(), text.begin() + 25);
  EXPECT_EQ(Alone(rest), std::vector(text.begin() + 25, text.end()));
}

TEST(Colocated, FailOverGoesOnWithTheSameText) {
  for (const float temperature : {0.f, 0.9f}) {
    const Request whole = MakeRequest("a", RandomPrompt(70, 9), 50, temperature, 11);
    const auto text = Alone(whole);
    for (const int emitted : {1, 20, 49}) {
      Request rest = whole;
      rest.emitted_ids.assign(text.begin(), text.begin() + emitted);
      EXPECT_EQ(Alone(rest), std::vector(text.begin() + emitted, text.end()));
    }
  }
}

TEST(Colocated, LogprobsOfOutputAndPrompt) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 50;
  Colocated c(options);
  Request r = MakeRequest("a", RandomPrompt(130, 10), 5);
  r.sampling.num_logprobs = 3;
  r.sampling.num_prompt_logprobs = 2;
  c.Run(MakeRequest("warm", r.prompt_ids, 1));
  const Received got = c.Run(r);
  EXPECT_EQ(got.num_cached_tokens, 0) << "prompt logprobs need every row";
  EXPECT_EQ(got.num_prompt_logprob_reports, 1);
  ASSERT_EQ(got.prompt_logprobs.size(), 130u);
  EXPECT_FALSE(got.prompt_logprobs[0]);
  for (int i = 1; i < 130; ++i) {
    EXPECT_EQ(got.prompt_logprobs[i]->id, r.prompt_ids[i]);
    EXPECT_EQ(got.prompt_logprobs[i]->top.size(), 2u);
  }
  ASSERT_EQ(got.outputs.size(), 5u);
  for (const TokenOutput& t : got.outputs) {
    EXPECT_EQ(t.top.size(), 3u);
    EXPECT_EQ(t.rank, 1);
    EXPECT_EQ(t.top[0].id, t.id);
    EXPECT_EQ(t.top[0].logprob, t.logprob);
  }
  // The prompt's logprobs are what decoding those tokens would have reported.
  Request shorter =
      MakeRequest("b", std::vector(r.prompt_ids.begin(), r.prompt_ids.begin() + 129), 1);
  shorter.sampling.num_logprobs = 2;
  const Received at_end = c.Run(shorter);
  EXPECT_EQ(at_end.outputs[0].top[0].id, got.prompt_logprobs[129]->top[0].id);
  EXPECT_EQ(at_end.outputs[0].top[0].logprob, got.prompt_logprobs[129]->top[0].logprob);
}

TEST(Colocated, RefusesWhatCannotRun) {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 4;
  Colocated c(options);
  const auto code = [&](Request r) { return c.Run(r).last.error.code(); };
  EXPECT_EQ(code(MakeRequest("empty", {}, 4)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeRequest("range", {5, FakeModel::kVocab}, 4)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeRequest("negative", {-1}, 4)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(MakeRequest("long", RandomPrompt(256, 1), 4)), absl::StatusCode::kInvalidArgument);
  const Received full = c.Run(MakeRequest("full", RandomPrompt(200, 1), 1000));
  EXPECT_EQ(full.tokens.size(), 56u);
  EXPECT_EQ(full.last.finish_reason, FinishReason::kLength);
}

TEST(Colocated, AFullQueueIsAnAnswer) {
  EngineOptions options = SmallOptions();
  options.max_waiting = 2;
  Colocated c(options);
  for (int i = 0; i < 3; ++i) c.Submit(MakeRequest("q" + std::to_string(i), {30, 31}, 3));
  c.RunAll();
  EXPECT_TRUE(c.clients["q1"].last.error.ok());
  EXPECT_EQ(c.clients["q2"].last.error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(c.engine->stats().queue_rejections, 1);
}

TEST(Colocated, AnIdInUseIsRefusedAndFreeAfterwards) {
  Colocated c;
  c.Submit(MakeRequest("a", {30, 31}, 3));
  absl::Status second;
  c.engine->Submit(MakeRequest("a", {30, 31}, 3), [&](EngineOutput o) { second = o.error; });
  c.RunAll();
  EXPECT_EQ(second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(c.clients["a"].tokens.size(), 3u);
}

TEST(Colocated, CancelIsLegalAlwaysAndTwice) {
  Colocated c;
  c.engine->Cancel("unknown");
  c.Submit(MakeRequest("a", RandomPrompt(200, 1), 50));
  for (int steps = 0; steps < 6; ++steps) {
    const std::string id = "c" + std::to_string(steps);
    c.Submit(MakeRequest(id, RandomPrompt(200, steps), 50));
    for (int i = 0; i < steps; ++i) c.engine->Step();
    c.engine->Cancel(id);
    c.engine->Cancel(id);
    c.engine->Step();
    EXPECT_TRUE(c.clients[id].finished);
    EXPECT_EQ(c.clients[id].last.finish_reason, FinishReason::kAbort);
  }
  c.RunAll();
  EXPECT_EQ(c.clients["a"].tokens.size(), 50u);
  EXPECT_EQ(c.engine->stats().blocks_request, 0);
}

TEST(Colocated, PriorityOvertakesInTheQueue) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Colocated c(options);
  c.Submit(MakeRequest("first", RandomPrompt(10, 1), 3));
  c.engine->Step();
  Request low = MakeRequest("low", RandomPrompt(10, 2), 3);
  low.priority = 5;
  c.Submit(low);
  c.Submit(MakeRequest("high", RandomPrompt(10, 3), 3));
  while (!c.clients["high"].finished) c.engine->Step();
  EXPECT_FALSE(c.clients["low"].finished);
  c.RunAll();
}

TEST(Colocated, StopNowAbortsAndDrainFinishes) {
  for (const bool drain : {false, true}) {
    Colocated c;
    c.Submit(MakeRequest("a", RandomPrompt(10, 1), 10));
    c.engine->Step();
    c.engine->Stop(drain);
    c.Submit(MakeRequest("late", RandomPrompt(10, 1), 10));
    c.engine->Run();
    EXPECT_EQ(c.clients["late"].last.error.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(c.clients["a"].last.finish_reason,
              drain ? FinishReason::kLength : FinishReason::kAbort);
    c.Submit(MakeRequest("later", RandomPrompt(10, 1), 10));
    EXPECT_EQ(c.clients["later"].last.error.code(), absl::StatusCode::kUnavailable);
  }
}

TEST(Colocated, RunWakesForWorkFromAnotherThread) {
  Colocated c;
  std::thread loop([&] { c.engine->Run(); });
  std::promise<size_t> done;
  size_t count = 0;
  c.engine->Submit(MakeRequest("a", RandomPrompt(10, 1), 10), [&](EngineOutput o) {
    count += o.tokens.size();
    if (o.finished()) done.set_value(count);
  });
  EXPECT_EQ(done.get_future().get(), 10u);
  c.engine->Stop(true);
  loop.join();
}

}  // namespace
}  // namespace lynx
