// SPDX-License-Identifier: Apache-2.0
// Self-speculation changes no text, whatever else happens to the sequences.
#include <filesystem>
#include <random>
#include <string>

#include "loopback_fixture.h"

namespace lynx {
namespace {

// Drafts on one recent block, so that many of them are wrong.
EngineOptions Drafting(int num_drafts) {
  EngineOptions options = SmallOptions();
  options.num_speculative_tokens = num_drafts;
  options.draft_context_tokens = kBlockSize;
  return options;
}

std::vector<Request> Requests(int n, int vocab_size = FakeModel::kVocab) {
  std::vector<Request> requests;
  std::mt19937 rng(11);
  for (int i = 0; i < n; ++i) {
    std::vector<TokenId> prompt(20 + 400 * i / n);
    for (TokenId& t : prompt) t = static_cast<TokenId>(20 + rng() % (vocab_size - 20));
    requests.push_back(MakeRequest("r" + std::to_string(i), prompt, 70, i % 2 == 0 ? 0 : 0.9f, i));
  }
  return requests;
}

std::vector<std::vector<TokenId>> Plain(const std::vector<Request>& requests, Model* model) {
  EngineOptions options = SmallOptions();
  options.num_speculative_tokens = 0;
  options.enable_prefix_caching = false;
  std::vector<std::vector<TokenId>> texts;
  for (const Request& r : requests) texts.push_back(Colocated(options, model).Run(r).tokens);
  return texts;
}

void ExpectTexts(Colocated& c, const std::vector<Request>& requests,
                 const std::vector<std::vector<TokenId>>& want) {
  for (const Request& r : requests) c.Submit(r);
  c.RunAll();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(c.clients[requests[i].id].tokens, want[i]) << i;
  }
  EXPECT_EQ(c.engine->stats().blocks_request, 0);
}

TEST(SelfSpeculation, TextIsTheSameAloneAndInABatch) {
  const std::vector<Request> requests = Requests(8);
  const auto want = Plain(requests, nullptr);
  for (const int num_drafts : {1, 4}) {
    for (const bool alone : {true, false}) {
      EngineOptions options = Drafting(num_drafts);
      options.max_num_batched_tokens = alone ? 96 : 37;  // verification in pieces
      options.max_num_seqs = alone ? 1 : 8;
      Colocated c(options);
      ExpectTexts(c, requests, want);
      const EngineStats stats = c.engine->stats();
      EXPECT_GT(stats.self_accepted_tokens, 0);
      EXPECT_LT(stats.self_accepted_tokens, stats.self_draft_tokens);
      EXPECT_EQ(stats.draft_tokens, stats.self_draft_tokens);
      EXPECT_EQ(stats.accepted_tokens, stats.self_accepted_tokens);
    }
  }
}

TEST(SelfSpeculation, FewerPassesOverTheWholeContext) {
  EngineOptions options = Drafting(4);
  options.draft_context_tokens = 512;  // all of it: every draft is right
  Colocated c(options);
  const Received r = c.Run(MakeRequest("a", RandomPrompt(90, 1), 101));
  EXPECT_EQ(r.tokens, Alone(MakeRequest("a", RandomPrompt(90, 1), 101)));
  const Timeline& t = r.last.timeline;
  EXPECT_EQ(t.num_self_drafted, 80);
  EXPECT_EQ(t.num_self_accepted, 80);
  EXPECT_EQ(t.num_drafted, 0);
  EXPECT_EQ(t.at(Event::kFirstDraft), 0);
  EXPECT_EQ(t.at(Event::kVerified), 0);
  EXPECT_EQ(t.token_ns.size(), 101u);
  const EngineStats stats = c.engine->stats();
  EXPECT_EQ(stats.num_drafts, 20);
  EXPECT_EQ(stats.accepted_at[3], 20);
  EXPECT_EQ(stats.step_rows, 90 + 80 + 100);
}

TEST(SelfSpeculation, EndsWherePlainDecodingEnds) {
  for (int at : {1, 10, 11, 12, 13}) {
    Request r = MakeRequest("a", RandomPrompt(200, 3), 60, 1.0f, 4);
    r.sampling.stop_token_ids = {Alone(r)[at]};
    const Received want = Colocated().Run(r);
    const Received got = Colocated(Drafting(5)).Run(r);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.last.finish_reason, FinishReason::kStop);
    EXPECT_EQ(got.last.stop_token, want.last.stop_token);
  }
  for (int max_tokens = 1; max_tokens < 9; ++max_tokens) {
    const Request r = MakeRequest("a", RandomPrompt(200, 3), max_tokens);
    const Received got = Colocated(Drafting(3)).Run(r);
    EXPECT_EQ(got.tokens, Alone(r));
    EXPECT_EQ(got.last.finish_reason, FinishReason::kLength);
  }
  // The longest sequence that fits.
  EngineOptions options = Drafting(5);
  options.num_kv_blocks = 5;
  const Received full = Colocated(options).Run(MakeRequest("full", RandomPrompt(300, 1), 1000));
  EXPECT_EQ(full.tokens, Alone(MakeRequest("full", RandomPrompt(300, 1), 20)));
}

TEST(SelfSpeculation, PenaltiesAndLogprobsAreThoseOfPlainDecoding) {
  Request r = MakeRequest("a", RandomPrompt(150, 8), 60);
  r.sampling.frequency_penalty = 2;
  r.sampling.repetition_penalty = 1.3f;
  r.sampling.num_logprobs = 2;
  const Received want = Colocated().Run(r);
  const Received got = Colocated(Drafting(4)).Run(r);
  ASSERT_EQ(got.tokens, want.tokens);
  for (size_t i = 0; i < got.outputs.size(); ++i) {
    EXPECT_EQ(got.outputs[i].logprob, want.outputs[i].logprob) << i;
    EXPECT_EQ(got.outputs[i].top[1].id, want.outputs[i].top[1].id) << i;
  }
}

TEST(SelfSpeculation, PreemptionAndPrefixHitsChangeNothing) {
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(MakeRequest("p" + std::to_string(i), RandomPrompt(90, i), 120, 0.7f, i));
  }
  const auto want = Plain(requests, nullptr);
  EngineOptions options = Drafting(4);
  options.num_kv_blocks = 6;  // each needs 4 in the end
  Colocated tight(options);
  ExpectTexts(tight, requests, want);
  EXPECT_GT(tight.engine->stats().num_preemptions, 0);

  Colocated roomy(Drafting(4));
  ExpectTexts(roomy, requests, want);
  for (Request& r : requests) r.id += " again";
  ExpectTexts(roomy, requests, want);
  EXPECT_GT(roomy.engine->stats().prompt_tokens_cached, 0);
  // A second turn: blocks that drafts were written to are exact once they are full.
  Request turn = requests[0];
  turn.id = "turn";
  turn.prompt_ids.insert(turn.prompt_ids.end(), want[0].begin(), want[0].end());
  turn.prompt_ids.push_back(50);
  const Received second = roomy.Run(turn);
  EXPECT_EQ(second.num_cached_tokens, 192);
  EXPECT_EQ(second.tokens, Alone(turn));
}

// Another one holds all other blocks while its KV does not come: what the sequence's own blocks
// take is decoded, no less than without drafts.
TEST(SelfSpeculation, NoTokenWaitsForABlockForDrafts) {
  EngineOptions options = Drafting(4);
  options.max_local_prefill_length = 100;
  options.num_kv_blocks = 7;
  Pair pair(options);
  bool open = false;
  pair.link.allow = [&](ScriptedLink::Stage) { return open; };
  Request local = MakeRequest("local", RandomPrompt(90, 1), 150);
  local.show_drafts = true;
  const Request remote = MakeRequest("remote", RandomPrompt(190, 2), 30);
  pair.Submit(remote);
  pair.Submit(local);
  pair.StepTimes(5);
  ASSERT_EQ(pair.decode->stats().blocks_free, 1);
  const size_t most = 3 * kBlockSize + 1 - local.prompt_ids.size();
  for (int i = 0; i < 200 && pair.clients["local"].tokens.size() < most; ++i) {
    EXPECT_TRUE(pair.decode->Step()) << "nothing was done while something could be";
  }
  EXPECT_EQ(pair.clients["local"].tokens.size(), most);
  EXPECT_EQ(pair.decode->stats().num_preemptions, 0);
  open = true;
  pair.RunAll();
  for (const Request& r : {local, remote}) EXPECT_EQ(pair.clients[r.id].tokens, Alone(r)) << r.id;
  EXPECT_GT(pair.clients["local"].last.timeline.num_self_accepted, 0);
  pair.ExpectNoLeak();
}

TEST(SelfSpeculation, ShownDraftsAreRevokedWhenWrong) {
  Request r = MakeRequest("a", RandomPrompt(200, 5), 60);
  r.show_drafts = true;
  const Received got = Colocated(Drafting(3)).Run(r);
  EXPECT_EQ(got.tokens, Alone(r));
  EXPECT_EQ(got.num_shown, got.last.timeline.num_self_drafted);
  EXPECT_EQ(got.num_shown - got.num_revoked, got.last.timeline.num_self_accepted);
  EXPECT_GT(got.num_revoked, 0);
}

TEST(SelfSpeculation, FollowsAHandOff) {
  Pair pair(Drafting(3));
  const Request r = MakeRequest("a", RandomPrompt(300, 6), 80, 0.8f, 3);
  const Received got = pair.Run(r);
  EXPECT_EQ(got.tokens, Alone(r));
  EXPECT_GT(got.last.timeline.num_self_drafted, 0);
  pair.ExpectNoLeak();
}

TEST(SelfSpeculation, IsOffWithoutSpeculation) {
  EngineOptions options = Drafting(3);
  options.speculation = false;
  Colocated c(options);
  c.Run(MakeRequest("a", RandomPrompt(300, 6), 20));
  EXPECT_EQ(c.engine->stats().draft_tokens, 0);
}

// Steps of a machine on which attention is all that costs, 10 us for each token whose KV is read.
class AttentionBound {
 public:
  explicit AttentionBound(EngineOptions options) {
    options.clock_ns = [this] { return now_ns += 1; };
    options.num_kv_blocks = 52;
    engine = std::make_unique<Colocated>(options, &model);
    model.on_forward = [this](const ForwardBatch& batch) {
      for (const RowGroup& g : batch.groups) now_ns += 10'000 * int64_t{g.position + g.num_rows};
    };
  }

  int64_t now_ns = 1;
  FakeModel model{4000};
  std::unique_ptr<Colocated> engine;
};

TEST(SelfSpeculation, IsOnByItselfWhereItPays) {
  const Request r = MakeRequest("a", RandomPrompt(2900, 6), 300);
  int64_t ns[2];
  std::vector<TokenId> tokens[2];
  for (const bool automatic : {false, true}) {
    EngineOptions options = SmallOptions();
    options.max_num_batched_tokens = 512;
    options.draft_context_tokens = kBlockSize;
    if (!automatic) options.num_speculative_tokens = 0;
    AttentionBound machine(options);
    const Received got = machine.engine->Run(r);
    const Timeline& t = got.last.timeline;
    ns[automatic] = t.token_ns.back() - t.token_ns.front();
    tokens[automatic] = got.tokens;
    EXPECT_EQ(t.num_self_drafted > 100, automatic);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_LT(ns[1], 0.95 * ns[0]);
}

// With real attention, rotary positions and a sliding window.
TEST(SelfSpeculation, TextOfRealModelsIsTheSame) {
  const std::string own = LYNX_SOURCE_DIR "/tests/data/tiny_models/";
  const std::string shared = LYNX_SHARED_DIR "/reference/tiny_models/";
  for (const std::string& path : {own + "qwen3-qknorm", shared + "mistral-sliding-16"}) {
    if (!std::filesystem::exists(path)) continue;
    const LoadedModel loaded = LoadedModel::Load(path);
    const std::vector<Request> requests = Requests(4, loaded.model->config().vocab_size);
    const auto want = Plain(requests, loaded.model.get());
    Colocated c(Drafting(3), loaded.model.get());
    ExpectTexts(c, requests, want);
    EXPECT_GT(c.engine->stats().self_accepted_tokens, 0) << path;
  }
}

}  // namespace
}  // namespace lynx
