// SPDX-License-Identifier: Apache-2.0
// Who is served when, and that nobody's text depends on it. Time is what the rows that were
// computed cost.
#include <algorithm>
#include <string>

#include "loopback_fixture.h"

namespace lynx {
namespace {

constexpr int64_t kMs = 1'000'000;

// An engine on a machine where a forward pass takes 10 ms and each row 1 ms.
class Timed {
 public:
  explicit Timed(EngineOptions options) {
    options.clock_ns = [this] { return Now(); };
    engine = std::make_unique<Colocated>(options, &model);
  }
  int64_t Now() const { return (1 + pause_ms + 10 * model.num_forwards + model.num_rows) * kMs; }
  // How long it took.
  int64_t Step() {
    const int64_t begin = Now();
    engine->engine->Step();
    return Now() - begin;
  }
  Received& operator[](const std::string& id) { return engine->clients[id]; }

  int64_t pause_ms = 0;
  FakeModel model;
  std::unique_ptr<Colocated> engine;
};

Request From(Request request, uint64_t client, int priority = 0) {
  request.client = client;
  request.priority = priority;
  return request;
}

TEST(Scheduling, ALongPromptDoesNotFreezeRunningAnswers) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 512;
  Timed t(options);
  std::vector<Request> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(MakeRequest("s" + std::to_string(i), RandomPrompt(10, i), 100, 0.8f, i));
    t.engine->Submit(running.back());
  }
  for (int i = 0; i < 5; ++i) t.Step();
  const Request prompt = MakeRequest("long", RandomPrompt(1500, 9), 5);
  t.engine->Submit(prompt);
  int num_steps = 0;
  while (t["long"].tokens.empty()) {
    const size_t before = t["s0"].tokens.size();
    EXPECT_LE(t.Step(), 55 * kMs) << num_steps;
    EXPECT_EQ(t["s0"].tokens.size(), before + 1);
    ++num_steps;
  }
  EXPECT_LE(num_steps, 1500 / 25);
  t.engine->RunAll();
  for (const Request& r : running) EXPECT_EQ(t[r.id].tokens, Alone(r)) << r.id;
  EXPECT_EQ(t["long"].tokens, Alone(prompt));
}

TEST(Scheduling, ALongPromptAloneGetsTheWholeBudget) {
  EngineOptions options = SmallOptions();
  options.max_num_batched_tokens = 512;
  Timed t(options);
  t.engine->Submit(MakeRequest("long", RandomPrompt(1500, 9), 1));
  t.engine->RunAll();
  EXPECT_EQ(t.model.num_forwards, 3);
}

// One client has a queue full of work when another comes with two requests.
TEST(Scheduling, AClientWithManyRequestsDoesNotDelayOneWithFew) {
  for (const bool fair : {true, false}) {
    EngineOptions options = SmallOptions();
    options.max_num_seqs = 2;
    options.fair_share = fair;
    Timed t(options);
    for (int i = 0; i < 10; ++i) {
      t.engine->Submit(From(MakeRequest("many" + std::to_string(i), RandomPrompt(60, i), 10), 1));
    }
    for (int i = 0; i < 3; ++i) t.Step();
    for (int i = 0; i < 2; ++i) {
      t.engine->Submit(
          From(MakeRequest("few" + std::to_string(i), RandomPrompt(60, 20 + i), 10), 2));
    }
    while (!t["few0"].finished || !t["few1"].finished) t.Step();
    int num_before = 0;
    for (int i = 0; i < 10; ++i) num_before += t["many" + std::to_string(i)].finished ? 1 : 0;
    if (fair) {
      EXPECT_LE(num_before, 5);
    } else {
      EXPECT_EQ(num_before, 10);
    }
    t.engine->RunAll();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(t["few" + std::to_string(i)].tokens,
                Alone(MakeRequest("a", RandomPrompt(60, 20 + i), 10)));
    }
  }
}

// They wait for the first of them, not for room.
TEST(Scheduling, ManyEqualPromptsDoNotDelayAnother) {
  Colocated c;
  const auto prompt = RandomPrompt(900, 1);
  for (int i = 0; i < 100; ++i) c.Submit(MakeRequest("s" + std::to_string(i), prompt, 2));
  c.Submit(MakeRequest("other", RandomPrompt(30, 2), 2));
  for (int i = 0; i < 5; ++i) c.engine->Step();
  EXPECT_TRUE(c.clients["other"].finished);
  EXPECT_TRUE(c.clients["s0"].tokens.empty());
  EXPECT_EQ(c.engine->stats().num_deferred, 99);
  c.RunAll();
}

TEST(Scheduling, WhoNeedsNoPrefillDaemonDoesNotWaitForOne) {
  EngineOptions options = SmallOptions();
  options.max_local_prefill_length = 40;
  Pair pair(options);
  pair.remote.usable = false;
  for (int i = 0; i < 100; ++i) {
    pair.Submit(MakeRequest("s" + std::to_string(i), RandomPrompt(60, i), 2));
  }
  pair.Submit(MakeRequest("short", RandomPrompt(30, 2), 2));
  pair.StepTimes(5);
  EXPECT_TRUE(pair.clients["short"].finished);
  EXPECT_EQ(pair.decode->stats().num_deferred, 100);
  pair.remote.usable = true;
  pair.RunAll();
  pair.ExpectNoLeak();
}

TEST(Scheduling, PriorityComesBeforeFairness) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  Timed t(options);
  t.engine->Submit(From(MakeRequest("first", RandomPrompt(60, 1), 10), 1));
  t.Step();
  t.engine->Submit(From(MakeRequest("other", RandomPrompt(60, 2), 3), 2));
  t.engine->Submit(From(MakeRequest("urgent", RandomPrompt(60, 3), 3), 1, -1));
  while (!t["urgent"].finished) t.Step();
  EXPECT_TRUE(t["other"].tokens.empty());
  t.engine->RunAll();
}

TEST(Scheduling, AWaitThatIsTooLongEnds) {
  EngineOptions options = SmallOptions();
  options.max_num_seqs = 1;
  options.queue_timeout_s = 2;
  Timed t(options);
  t.engine->Submit(MakeRequest("runs", RandomPrompt(10, 1), 200));
  t.Step();
  t.engine->Submit(MakeRequest("waits", RandomPrompt(10, 2), 3));
  t.Step();
  EXPECT_FALSE(t["waits"].finished);
  t.pause_ms += 2000;
  t.Step();
  EXPECT_EQ(t["waits"].last.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(t.engine->engine->stats().queue_timeouts, 1);
  t.engine->RunAll();
  EXPECT_EQ(t["runs"].tokens.size(), 200u) << "what runs has no such limit";
}

TEST(Scheduling, APreemptedSequenceMayWaitLongerAndGoesOnWithTheSameText) {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 6;  // each needs 4 in the end
  options.queue_timeout_s = 1;
  Timed t(options);
  std::vector<Request> requests;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(
        From(MakeRequest("p" + std::to_string(i), RandomPrompt(50, i), 190, 0.7f, i), i));
    t.engine->Submit(requests.back());
  }
  t.engine->RunAll();
  EXPECT_GT(t.engine->engine->stats().num_preemptions, 0);
  for (const Request& r : requests) EXPECT_EQ(t[r.id].tokens, Alone(r)) << r.id;
}

// The same with real layers, on blocks that have held other sequences.
TEST(Scheduling, PreemptionOfARealModelDoesNotChangeText) {
  for (const char* name : {"llama-gqa-tied/gguf/llama-gqa-tied.Q4_1.gguf", "qwen3-qknorm"}) {
    LoadedModel loaded =
        LoadedModel::Load(std::string(LYNX_SOURCE_DIR "/tests/data/tiny_models/") + name);
    EngineOptions options = SmallOptions();
    options.num_kv_blocks = 5;
    options.enable_prefix_caching = false;
    Colocated crowded(options, loaded.model.get());
    std::vector<Request> requests;
    for (int i = 0; i < 4; ++i) {
      requests.push_back(
          MakeRequest("r" + std::to_string(i), RandomPrompt(50, i), 100, i % 2 == 0 ? 0 : 0.8f, i));
      crowded.Submit(requests.back());
    }
    crowded.RunAll();
    EXPECT_GT(crowded.engine->stats().num_preemptions, 0) << name;
    for (const Request& r : requests) {
      const auto want = Colocated(SmallOptions(), loaded.model.get()).Run(r).tokens;
      EXPECT_EQ(want.size(), 100u);
      EXPECT_EQ(crowded.clients[r.id].tokens, want) << name << " " << r.id;
    }
  }
}

TEST(Scheduling, PromptTokensAreComputedOrCached) {
  Colocated c;
  const auto prompt = RandomPrompt(200, 3);
  c.Run(MakeRequest("a", prompt, 3));
  EXPECT_EQ(c.Run(MakeRequest("b", prompt, 3)).num_cached_tokens, 192);
  const EngineStats stats = c.engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 400);
  EXPECT_EQ(stats.prompt_tokens_cached, 192);
  EXPECT_EQ(stats.prompt_tokens_computed, 208);
  EXPECT_EQ(stats.prompt_tokens_transferred, 0);
}

TEST(Scheduling, PriorityAndClientReachThePrefillSide) {
  Pair pair;
  pair.Submit(From(MakeRequest("a", RandomPrompt(200, 1), 5), 77, -3));
  pair.RunAll();
  EXPECT_EQ(pair.remote.last_client, 77u);
  EXPECT_EQ(pair.remote.last_priority, -3);
}

TEST(Scheduling, PromptTokensAreTransferredComputedOrCachedAcrossAPair) {
  Pair pair;
  const auto prompt = RandomPrompt(200, 3);
  pair.Run(MakeRequest("a", prompt, 3));
  pair.Run(MakeRequest("b", prompt, 3));
  const EngineStats d = pair.decode->stats(), p = pair.prefill->stats();
  EXPECT_EQ(d.prompt_tokens, 400);
  EXPECT_EQ(d.prompt_tokens_cached + d.prompt_tokens_transferred + d.prompt_tokens_computed, 400);
  EXPECT_EQ(p.prompt_tokens_cached + p.prompt_tokens_computed, p.prompt_tokens);
  EXPECT_EQ(d.remote_prefills + d.local_prefills, 2);
}

}  // namespace
}  // namespace lynx
