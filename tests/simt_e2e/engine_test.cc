// SPDX-License-Identifier: Apache-2.0
// Engines on the emulated device: disaggregated is colocated, token for token, with and without
// speculation, alone or in a batch, whether the device or the host chooses.
#include "tests/engine/loopback_fixture.h"
#include "tests/simt_e2e/simt_models.h"

namespace lynx {
namespace {

constexpr int kNumOutput = 10;
constexpr int kMaxRows = 96;

std::vector<Request> Requests(int vocab_size) {
  std::vector<Request> requests;
  std::mt19937 rng(17);
  for (const int length : {3, 70, 140}) {
    std::vector<TokenId> prompt(length);
    for (TokenId& t : prompt) t = static_cast<TokenId>(rng() % vocab_size);
    const float temperature = length == 70 ? 0.8f : 0.0f;
    requests.push_back(MakeRequest(absl::StrCat("r", length), prompt, kNumOutput, temperature, 50));
  }
  return requests;
}

EngineOptions Options() {
  EngineOptions options = SmallOptions();
  options.num_kv_blocks = 16;
  options.max_draft_tokens = 6;
  options.max_num_batched_tokens = kMaxRows;
  return options;
}

class SimtEngine : public testing::TestWithParam<TinyModel> {
 protected:
  void SetUp() override {
    model_ = LoadedModel::Load(GetParam().path, MakeSimtBackend(), kMaxRows);
    requests_ = Requests(model_.model->config().vocab_size);
    for (const Request& r : requests_) {  // each alone
      want_.push_back(Colocated(Options(), model_.model.get()).Run(r).tokens);
    }
  }

  LoadedModel model_;
  std::vector<Request> requests_;
  std::vector<std::vector<TokenId>> want_;
};
INSTANTIATE_TEST_SUITE_P(TinyModels, SimtEngine, testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SimtEngine, ABatchInSmallChunksChangesNothing) {
  EngineOptions options = Options();
  options.max_num_batched_tokens = 24;
  Colocated engine(options, model_.model.get());
  for (const Request& r : requests_) engine.Submit(r);
  engine.RunAll();
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(engine.clients[requests_[i].id].tokens, want_[i]) << i;
  }
}

TEST_P(SimtEngine, TheHostChoosesTheSameTokens) {
  for (size_t i = 0; i < requests_.size(); ++i) {
    Request with_logprobs = requests_[i];
    with_logprobs.sampling.num_logprobs = 1;  // needs the logits on the host
    EXPECT_EQ(Colocated(Options(), model_.model.get()).Run(with_logprobs).tokens, want_[i]) << i;
  }
}

// Later stages are held until drafts were made on the anchors.
TEST_P(SimtEngine, DraftsOnTheAnchorChangeNothing) {
  LoopbackPair::Settings settings;
  settings.options = Options();
  LoopbackPair pair(settings, model_, model_);
  pair.link().HoldOffers(IsLaterStage);
  for (const Request& r : requests_) pair.Submit(r);
  pair.RunUntil([&] { return pair.decode->stats().draft_tokens >= 8; });
  pair.link().ReleaseOffers();
  pair.RunAll();
  for (size_t i = 0; i < requests_.size(); ++i) {
    EXPECT_EQ(pair.clients[requests_[i].id].tokens, want_[i]) << i;
  }
  EXPECT_GT(pair.decode->stats().accepted_tokens, 0);
  pair.ExpectNoLeak();
}

// "bf16" works on the host: its tiles are staged.
TEST_P(SimtEngine, NoSpeculationAndAStagedCodec) {
  for (const std::string codec : {"planes", "bf16"}) {
    LoopbackPair::Settings settings;
    settings.options = Options();
    settings.options.speculation = false;
    settings.codec = codec;
    LoopbackPair pair(settings, model_, model_);
    for (const Request& r : requests_) pair.Submit(r);
    pair.RunAll();
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_EQ(pair.clients[requests_[i].id].tokens, want_[i]) << i << " " << codec;
    }
    pair.ExpectNoLeak();
  }
}

}  // namespace
}  // namespace lynx
