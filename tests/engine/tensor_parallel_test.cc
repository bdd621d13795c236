// SPDX-License-Identifier: Apache-2.0
// Engines over a model that is divided among ranks: speculation, hand-off, prefix cache and company
// change no token, and the two sides of a hand-off may be divided differently.
#include <random>

#include "loopback_fixture.h"
#include "tests/model/cpu_ranks.h"
#include "tests/model/tiny_model_paths.h"

namespace lynx {
namespace {

// The other ranks' back-ends outlive the model.
struct LoadedRanks {
  std::vector<std::unique_ptr<cpu::CpuBackend>> others;
  LoadedModel loaded;

  explicit LoadedRanks(int num_ranks, Compute compute = Compute::kFast) {
    auto ranks = CpuRanks::Load(kTinyQwen3, num_ranks, {.compute = compute}, 256);
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    loaded.backend = std::move(ranks->backends[0]);
    loaded.model = std::move(ranks->model);
    others = std::move(ranks->backends);
  }
};

std::vector<Request> Requests(int n) {
  std::vector<Request> requests;
  std::mt19937 rng(23);
  for (int i = 0; i < n; ++i) {
    std::vector<TokenId> prompt(5 + 380 * i / n);
    for (TokenId& t : prompt) t = static_cast<TokenId>(rng() % 512);
    requests.push_back(
        MakeRequest("r" + std::to_string(i), prompt, 24, i % 2 == 0 ? 0 : 0.8f, 50 + i));
  }
  return requests;
}

std::vector<std::vector<TokenId>> ColocatedTexts(const std::vector<Request>& requests, Model* m) {
  std::vector<std::vector<TokenId>> texts;
  for (const Request& r : requests) {
    texts.push_back(Colocated(SmallOptions(), m).Run(r).tokens);
  }
  return texts;
}

TEST(TensorParallelEngine, CompanyAndPrefixHitsChangeNothing) {
  LoadedRanks m(2);
  const std::vector<Request> requests = Requests(8);
  const auto want = ColocatedTexts(requests, m.loaded.model.get());
  Colocated engine(SmallOptions(), m.loaded.model.get());
  for (const char* round : {"first ", "again "}) {  // the second time from the prefix cache
    for (Request r : requests) {
      r.id = round + r.id;
      engine.Submit(r);
    }
    engine.RunAll();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(engine.clients[round + requests[i].id].tokens, want[i]) << round << i;
    }
  }
  EXPECT_GT(engine.engine->stats().prefix_hits, 0);
}

// Later stages are held until sequences have drafted.
TEST(TensorParallelEngine, DisaggregatedEqualsColocated) {
  LoadedRanks m(2);
  const std::vector<Request> requests = Requests(8);
  const auto want = ColocatedTexts(requests, m.loaded.model.get());
  for (const bool speculation : {true, false}) {
    LoopbackPair::Settings settings;
    settings.options.speculation = speculation;
    LoopbackPair pair(settings, m.loaded, m.loaded);
    if (speculation) pair.link().HoldOffers(IsLaterStage);
    for (const Request& r : requests) pair.Submit(r);
    if (speculation) {
      pair.RunUntil([&] { return pair.decode->stats().draft_tokens >= 10; });
      pair.link().ReleaseOffers();
    }
    pair.RunAll();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(pair.clients[requests[i].id].tokens, want[i]) << i;
    }
    EXPECT_GT(pair.decode->stats().remote_prefills, 0);
    pair.ExpectNoLeak();
  }
}

// Token 1 comes from the prefill side; the rest is computed on KV that is the prefill side's bit
// for bit.
TEST(TensorParallelEngine, TheTwoSidesMayBeDividedDifferently) {
  LoadedRanks one(1), two(2);
  const std::vector<Request> requests = Requests(6);
  for (const auto& [prefill, decode] : {std::pair(&one, &two), std::pair(&two, &one)}) {
    LoopbackPair pair({}, prefill->loaded, decode->loaded);
    for (const Request& r : requests) pair.Submit(r);
    pair.RunAll();
    for (const Request& r : requests) {
      const Received& got = pair.clients[r.id];
      EXPECT_TRUE(got.last.error.ok()) << got.last.error;
      EXPECT_EQ(got.tokens.size(), 24u);
      const auto alone = Colocated(SmallOptions(), prefill->loaded.model.get()).Run(r).tokens;
      EXPECT_EQ(got.tokens[0], alone[0]);
    }
    EXPECT_GT(pair.decode->stats().remote_prefills, 0);
    pair.ExpectNoLeak();
  }
}

// In float32 two degrees differ by their orders of summation only: 1e-3 in a logit bounds that for
// tiny models (docs/numerics.md), and a logprob adds as much again for what it is relative to. The
// same every time, in company as alone.
TEST(TensorParallelEngine, AnotherDegreeIsReproducibleAndWithinTheBound) {
  constexpr double kBound = 2 * 1e-3;
  LoadedRanks one(1, Compute::kF32), two(2, Compute::kF32);
  std::vector<Request> requests = Requests(4);
  for (Request& r : requests) {
    r.sampling.temperature = 0;
    r.sampling.num_logprobs = 1;
  }
  for (const auto& [prefill, decode] : {std::pair(&one, &two), std::pair(&two, &one)}) {
    std::map<std::string, std::vector<TokenId>> first;
    for (const bool together : {true, false}) {
      LoopbackPair pair({}, prefill->loaded, decode->loaded);
      for (const Request& r : requests) {
        pair.Submit(r);
        if (!together) pair.RunAll();
      }
      pair.RunAll();
      for (const Request& r : requests) {
        const Received& got = pair.clients[r.id];
        ASSERT_TRUE(got.last.error.ok()) << got.last.error;
        if (together) first[r.id] = got.tokens;
        EXPECT_EQ(got.tokens, first[r.id]) << "alone and in company";
        const Received want = Colocated(SmallOptions(), decode->loaded.model.get()).Run(r);
        for (size_t i = 0; i < got.tokens.size() && got.tokens[i] == want.tokens[i]; ++i) {
          EXPECT_NEAR(got.outputs[i].logprob, want.outputs[i].logprob, kBound) << r.id << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lynx
