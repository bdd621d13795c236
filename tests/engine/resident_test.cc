// SPDX-License-Identifier: Apache-2.0
// kv.resident: exact, 8bit: cached blocks are packed when their memory is needed.
#include <algorithm>
#include <filesystem>
#include <random>

#include "loopback_fixture.h"
#include "tests/model/cpu_ranks.h"

namespace lynx {
namespace {

using Stage = ScriptedLink::Stage;

EngineOptions Packing(EngineOptions options, Resident resident = Resident::kExact) {
  options.resident = resident;
  return options;
}

EngineOptions WithBlocks(int num_blocks) {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = num_blocks;
  options.itl_target_ms = 0;  // no test depends on the time that it takes
  return options;
}

// Many different prompts, then all of them again: what is held and what is found.
struct Repeats {
  EngineStats first, second;
  std::vector<std::vector<TokenId>> texts;
  int64_t hits() const { return second.prefix_hits - first.prefix_hits; }
  int64_t held() const { return first.blocks_cached * kBlockSize + first.packed_tokens; }
};

Repeats RunTwice(const EngineOptions& options, int num_prompts) {
  Colocated c(options);
  Repeats result;
  for (int round = 0; round < 2; ++round) {
    // The newest first, or a cache that is a little too small would never have a hit.
    for (int i = 0; i < num_prompts; ++i) {
      const int prompt = round == 0 ? i : num_prompts - 1 - i;
      const Received got = c.Run(MakeRequest(std::to_string(round * num_prompts + prompt),
                                             RandomPrompt(200 + prompt, prompt), 12, 0.8f, prompt));
      result.texts.push_back(got.tokens);
    }
    (round == 0 ? result.first : result.second) = c.engine->stats();
  }
  EXPECT_EQ(result.second.blocks_request, 0);
  EXPECT_EQ(result.second.prompt_tokens_computed + result.second.prompt_tokens_cached,
            result.second.prompt_tokens);
  return result;
}

TEST(Resident, ExactHoldsAndFindsMoreInTheSameMemory) {
  constexpr int kNumPrompts = 24;  // 3 blocks each, of a pool of 48
  const Repeats bf16 = RunTwice(WithBlocks(48), kNumPrompts);
  const Repeats exact = RunTwice(Packing(WithBlocks(48)), kNumPrompts);
  EngineOptions off = WithBlocks(48);
  off.enable_prefix_caching = false;
  EXPECT_EQ(exact.texts, RunTwice(off, kNumPrompts).texts);
  EXPECT_EQ(exact.texts, bf16.texts);
  EXPECT_GT(exact.held(), bf16.held());
  EXPECT_GT(exact.hits(), bf16.hits());
  EXPECT_GT(exact.second.restored_tokens, 0);
  EXPECT_EQ(bf16.second.blocks_packed, 0);
  EXPECT_LE(exact.first.packed_bytes, exact.first.blocks_packed * exact.first.block_bytes);
  RecordProperty("held_bf16", static_cast<int>(bf16.held()));
  RecordProperty("held_exact", static_cast<int>(exact.held()));
}

TEST(Resident, EightBitsHoldAndFindMoreThanExact) {
  constexpr int kNumPrompts = 32;
  const Repeats exact = RunTwice(Packing(WithBlocks(48)), kNumPrompts);
  const Repeats eight = RunTwice(Packing(WithBlocks(48), Resident::k8Bit), kNumPrompts);
  EXPECT_GT(eight.held(), exact.held());
  EXPECT_GT(eight.hits(), exact.hits());
  EXPECT_GT(eight.second.restored_tokens, 0);
  EXPECT_GT(eight.second.encoded_tokens, 0);
  EXPECT_LT(eight.first.packed_bytes * exact.first.packed_tokens,
            exact.first.packed_bytes * eight.first.packed_tokens);
  RecordProperty("held_exact", static_cast<int>(exact.held()));
  RecordProperty("held_8bit", static_cast<int>(eight.held()));
}

// Requests one after another, whatever moves take and however long the pauses between them are.
TEST(Resident, EightBitsGiveTheSameAnswersToTheSameRequests) {
  constexpr int kNumPrompts = 24;
  const auto run = [](int64_t tick_ns, int num_pauses) {
    EngineOptions options = Packing(WithBlocks(40), Resident::k8Bit);
    options.itl_target_ms = 50;
    options.clock_ns = [tick_ns, now = int64_t{1}]() mutable { return now += tick_ns; };
    Colocated c(options);
    std::vector<std::vector<TokenId>> texts;
    for (int i = 0; i < 3 * kNumPrompts; ++i) {
      const int turn = i % (2 * kNumPrompts);  // there and back
      const int prompt = std::min(turn, 2 * kNumPrompts - 1 - turn);
      texts.push_back(c.Run(MakeRequest(std::to_string(i), RandomPrompt(200 + prompt, prompt), 80,
                                        0.8f, prompt))
                          .tokens);
      for (int pause = 0; pause < num_pauses; ++pause) c.engine->Step();
    }
    EXPECT_GT(c.engine->stats().restored_tokens, 0);
    return texts;
  };
  const auto texts = run(100, 0);
  EXPECT_EQ(run(100, 20), texts);
  EXPECT_EQ(run(20'000'000, 3), texts);
}

// The prefill side's KV of a prefix may be another than the decode side's.
TEST(Resident, InEightBitsThePrefillSideJudgesNothing) {
  for (const VerifyMode mode : {VerifyMode::kSource, VerifyMode::kHold, VerifyMode::kAuto}) {
    for (const Resident resident : {Resident::kExact, Resident::k8Bit}) {
      EngineOptions options = Packing(WithBlocks(64), resident);
      options.verify = mode;
      Pair pair(options, options);
      int asked = 0;
      pair.link.allow = [&](Stage s) { return s != Stage::kTarget || ++asked % 40 == 0; };
      const Request request = MakeRequest("r", RandomPrompt(300, 1), 40);
      EXPECT_EQ(pair.Run(request).tokens, Alone(request)) << "nothing was found in a cache";
      EXPECT_EQ(pair.decode->stats().source_tokens > 0, resident == Resident::kExact);
    }
  }
}

TEST(Resident, PreemptionAndTinyPoolsDoNotChangeText) {
  for (const int num_blocks : {5, 6, 9}) {  // each request needs 4 in the end
    Colocated c(Packing(WithBlocks(num_blocks)));
    std::vector<Request> requests;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(
          MakeRequest("p" + std::to_string(i), RandomPrompt(90, i % 4), 120, 0.7f, i));
      c.Submit(requests.back());
    }
    c.RunAll();
    for (const Request& r : requests) EXPECT_EQ(c.clients[r.id].tokens, Alone(r)) << r.id;
    EXPECT_GT(c.engine->stats().num_preemptions, 0);
    EXPECT_GT(c.engine->stats().pack_ns, 0);
    const EngineStats s = c.engine->stats();
    EXPECT_EQ(s.blocks_free + s.blocks_cached + s.blocks_packed, s.blocks_total);
  }
}

// While others decode, a long packed prefix comes back over several steps.
TEST(Resident, RestoringLeavesRunningAnswersTheirSteps) {
  EngineOptions options = Packing(WithBlocks(31));
  options.itl_target_ms = 50;
  int64_t clock_ns = 1;
  options.clock_ns = [&] { return clock_ns += 1'500'000; };  // every move takes that long
  Colocated c(options);
  const Request packed = MakeRequest("long", RandomPrompt(64 * 14 + 5, 1), 4);
  const auto want = c.Run(packed).tokens;
  for (const char* other : {"x", "y"}) c.Run(MakeRequest(other, RandomPrompt(700, other[0]), 2));
  const int64_t before = c.engine->stats().restored_tokens;
  c.Submit(MakeRequest("answer", RandomPrompt(30, 3), 200));
  for (int i = 0; i < 3; ++i) c.engine->Step();
  Request again = packed;
  again.id = "again";
  c.Submit(again);
  int most = 0;
  int64_t restored = before;
  for (int i = 0; i < 40 && !c.clients["again"].finished; ++i) {
    c.engine->Step();
    const int64_t now = c.engine->stats().restored_tokens;
    most = std::max(most, static_cast<int>(now - restored) / kBlockSize);
    restored = now;
  }
  EXPECT_GT(restored - before, 4 * kBlockSize) << "more than one step may do";
  EXPECT_LE(most, 4) << "50 ms / 8 / 1.5 ms";
  c.RunAll();
  EXPECT_EQ(c.clients["again"].tokens, want);
  EXPECT_EQ(c.clients["answer"].tokens, Alone(MakeRequest("answer", RandomPrompt(30, 3), 200)));
}

// There are just enough blocks for it, but none to spare while an answer runs.
TEST(Resident, WhatTheSchedulerRefusesDecodesNothing) {
  EngineOptions options = Packing(WithBlocks(16));
  options.itl_target_ms = 50;
  int64_t clock_ns = 1;
  options.clock_ns = [&] { return clock_ns += 1'500'000; };  // four moves a step
  Colocated c(options);
  const Request packed = MakeRequest("long", RandomPrompt(64 * 14 + 5, 1), 4);
  const auto want = c.Run(packed).tokens;
  c.Run(MakeRequest("other", RandomPrompt(300, 2), 2));
  c.Submit(MakeRequest("answer", RandomPrompt(30, 3), 30));
  for (int i = 0; i < 3; ++i) c.engine->Step();
  const int64_t before = c.engine->stats().restored_tokens;
  ASSERT_GT(c.engine->stats().packed_tokens, 4 * kBlockSize);
  Request again = packed;
  again.id = "again";
  c.Submit(again);
  int num_steps = 0;
  for (; c.engine->Step() && !c.clients["answer"].finished; ++num_steps) {
    EXPECT_EQ(c.engine->stats().restored_tokens, before);
  }
  EXPECT_GT(num_steps, 4);
  c.RunAll();
  EXPECT_GT(c.engine->stats().restored_tokens, before);
  EXPECT_EQ(c.clients["again"].tokens, want);
}

void PackOnBothSidesOfAHandoff(Resident resident) {
  std::mt19937 rng(7);
  EngineOptions options = Packing(WithBlocks(14), resident);
  options.max_waiting = 400;
  options.max_local_prefill_length = 40;
  Pair pair(options, options);
  pair.link.allow = [&](Stage s) { return rng() % (s == Stage::kTarget ? 9 : 3) == 0; };
  std::vector<Request> requests;
  for (int i = 0; i < 120; ++i) {
    requests.push_back(MakeRequest("x" + std::to_string(i),
                                   RandomPrompt(100 + static_cast<int>(rng() % 200), rng() % 12),
                                   1 + static_cast<int>(rng() % 30), i % 2 == 0 ? 0 : 0.8f, i));
  }
  size_t submitted = 0;
  for (int step = 0; step < 20000; ++step) {
    if (submitted < requests.size() && step % 4 == 0) pair.Submit(requests[submitted++]);
    if (step % 7 == 3 && rng() % 4 == 0) pair.decode->Cancel("x" + std::to_string(rng() % 120));
    if (step % 200 == 199) pair.link.FailAll();
    pair.Step();
    if (submitted == requests.size() && pair.clients.AllFinished()) break;
  }
  EXPECT_TRUE(pair.clients.AllFinished());
  pair.ExpectNoLeak();
  for (const Request& r : requests) {
    const auto& got = pair.clients[r.id].tokens;
    if (resident == Resident::k8Bit) continue;
    const auto want = Alone(r);
    ASSERT_LE(got.size(), want.size());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin())) << r.id;
  }
  for (const Engine* e : {pair.prefill.get(), pair.decode.get()}) {
    EXPECT_GT(e->stats().restored_tokens, 0);
  }
}

TEST(Resident, BothSidesOfAHandoffPack) { PackOnBothSidesOfAHandoff(Resident::kExact); }

TEST(Resident, BothSidesOfAHandoffPackInEightBits) { PackOnBothSidesOfAHandoff(Resident::k8Bit); }

// Each rank has its heads' KV in memory of its own; packed blocks lie in all of them.
TEST(Resident, PacksWhatIsDividedAmongRanks) {
  auto ranks =
      CpuRanks::Load(LYNX_SOURCE_DIR "/tests/data/tiny_models/qwen3-qknorm", 2, {}, /*rows=*/256);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const auto run = [&](const EngineOptions& options, EngineStats* stats) {
    Colocated c(options, ranks->model.get());
    std::vector<std::vector<TokenId>> texts;
    for (int i = 0; i < 32; ++i) {
      const int prompt = std::min(i, 31 - i);
      texts.push_back(
          c.Run(MakeRequest(std::to_string(i), RandomPrompt(195 + prompt, prompt), 4, 0.8f, prompt))
              .tokens);
    }
    *stats = c.engine->stats();
    return texts;
  };
  EngineStats bf16, exact, eight;
  const auto want = run(WithBlocks(24), &bf16);
  EXPECT_EQ(run(Packing(WithBlocks(24)), &exact), want);
  const auto in_eight_bits = run(Packing(WithBlocks(24), Resident::k8Bit), &eight);
  EXPECT_EQ(run(Packing(WithBlocks(24), Resident::k8Bit), &eight), in_eight_bits);
  EXPECT_GT(exact.restored_tokens, 0);
  EXPECT_GT(exact.prefix_hits, bf16.prefix_hits);
  EXPECT_GT(eight.prefix_hits, exact.prefix_hits);
}

// The real sender, receiver and kernels; also with a float32 cache.
TEST(Resident, RealKvComesBackBitForBit) {
  const std::string path = LYNX_SHARED_DIR "/reference/tiny_models/llama-gqa-tied";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference models";
  for (const Compute compute : {Compute::kFast, Compute::kF32}) {
    LoadedModel m = LoadedModel::Load(path, compute);
    std::mt19937 rng(3);
    std::vector<Request> requests;
    for (int i = 0; i < 30; ++i) {
      const int prompt = static_cast<int>(rng() % 5);
      requests.push_back(MakeRequest("r" + std::to_string(i),
                                     RandomPrompt(150 + 10 * prompt, prompt), 6, 0.8f, i));
    }
    EngineOptions off = WithBlocks(64);
    off.enable_prefix_caching = false;
    Colocated yardstick(off, m.model.get());
    LoopbackPair pair({.options = Packing(WithBlocks(9)), .codec = "planes", .receiver = {}}, m, m);
    for (const Request& r : requests) {
      pair.Submit(r);
      pair.RunAll();
      EXPECT_EQ(pair.clients[r.id].tokens, yardstick.Run(r).tokens) << r.id;
    }
    pair.ExpectNoLeak();
    EXPECT_GT(pair.decode->stats().restored_tokens, 0);
    EXPECT_GT(pair.prefill->stats().restored_tokens, 0);
  }
}

}  // namespace
}  // namespace lynx
