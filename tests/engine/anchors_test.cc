// SPDX-License-Identifier: Apache-2.0
// kv.anchor: the text is the colocated one whatever travels first, and the timeline says what did.
#include <filesystem>

#include "engine/anchor_options.h"
#include "loopback_fixture.h"
#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr VerifyMode kModes[] = {VerifyMode::kResidual, VerifyMode::kSource, VerifyMode::kHold,
                                 VerifyMode::kAuto};

AnchorOptions Options(const std::string& anchor, const KvLayout& layout,
                      const std::optional<AnchorWidths>& table = {}) {
  const auto backend = cpu::CpuBackend::Create({});
  const auto codec = std::move(*MakeCodec("planes", *backend));
  auto options =
      MakeAnchorOptions(anchor, table, DefaultSendPlan(*codec, layout.num_layers, true), layout);
  EXPECT_TRUE(options.ok()) << options.status();
  return std::move(*options);
}

// 4 bits of some tensors, 2 and 3 of others.
AnchorWidths Table(int num_layers) {
  AnchorWidths widths;
  for (int i = 0; i < num_layers * 2; ++i) {
    widths.bits.push_back(2 + i % 3);
    widths.damage.push_back(0.01 * i);
  }
  return widths;
}

class Anchors : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = std::string(LYNX_SHARED_DIR) + "/reference/tiny_models/llama-gqa-tied";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "no reference models";
    m_ = LoadedModel::Load(path);
    for (int i = 0; i < 5; ++i) {
      requests_.push_back(MakeRequest("r" + std::to_string(i), RandomPrompt(60 + 90 * i, i), 24,
                                      i % 2 == 0 ? 0 : 0.8f, i));
      want_.push_back(Colocated(SmallOptions(), m_.model.get()).Run(requests_.back()).tokens);
    }
  }
  KvLayout layout() const { return m_.model->kv_layout(); }

  LoadedModel m_;
  std::vector<Request> requests_;
  std::vector<std::vector<TokenId>> want_;
};

// Later stages are held for a while, so that anchors are drafted on. Twice, so that `auto` has
// something to go by.
TEST_F(Anchors, TheTextIsTheColocatedText) {
  const AnchorWidths table = Table(layout().num_layers);
  for (const std::string anchor :
       {"default", "k2v2", "k3v2", "k4v3", "k4v4", "table", "target", "auto"}) {
    for (const VerifyMode mode : kModes) {
      LoopbackPair::Settings settings;
      settings.options.verify = mode;
      settings.options.enable_prefix_caching = false;
      settings.options.anchors = Options(anchor, layout(), table);
      LoopbackPair pair(settings, m_, m_);
      for (const char* round : {"a", "b"}) {
        pair.link().HoldOffers(IsLaterStage);
        for (Request r : requests_) {
          r.id += round;
          pair.Submit(r);
        }
        for (int i = 0; i < 60; ++i) pair.Step();
        pair.link().ReleaseOffers();
        pair.RunAll();
        for (size_t i = 0; i < requests_.size(); ++i) {
          const Received& got = pair.clients[requests_[i].id + round];
          EXPECT_EQ(got.tokens, want_[i]) << i << round << " " << anchor << " " << Name(mode);
          const Timeline& t = got.last.timeline;
          if (t.num_handoffs == 0) continue;
          if (!t.stage_bytes.empty()) {
            EXPECT_EQ(t.stage_bytes.size(), t.anchor == "target" ? 1u : 3u) << i << " " << t.anchor;
          }
          if (anchor == "auto") continue;
          EXPECT_EQ(t.estimated_anchor_ns, 0);
          EXPECT_EQ(t.anchor, anchor == "default" ? "table" : anchor);
        }
        pair.ExpectNoLeak();
      }
      EXPECT_TRUE(anchor != "target" || pair.decode->stats().draft_tokens == 0);
    }
  }
}

TEST_F(Anchors, AutoSaysWhatItExpects) {
  LoopbackPair::Settings settings;
  settings.options.enable_prefix_caching = false;
  settings.options.anchors = Options("auto", layout());
  LoopbackPair pair(settings, m_, m_);
  Request r = requests_.back();
  r.id = "first";
  pair.Submit(r);
  pair.RunAll();
  EXPECT_EQ(pair.clients["first"].last.timeline.anchor, "k4v2");
  EXPECT_EQ(pair.clients["first"].last.timeline.estimated_anchor_ns, 0) << "nothing is known yet";
  r.id = "second";
  pair.Submit(r);
  pair.RunAll();
  const Timeline& t = pair.clients["second"].last.timeline;
  EXPECT_GT(t.estimated_anchor_ns, 0);
  EXPECT_FALSE(t.anchor.empty());
  EXPECT_EQ(pair.clients["second"].tokens, want_.back());
}

TEST_F(Anchors, AnAnchorThatThePrefillSideCannotCutEndsTheRequest) {
  LoopbackPair::Settings settings;
  settings.options.anchors = Options("k4v2", layout());
  settings.options.anchors.candidates[0].planes.pop_back();
  LoopbackPair pair(settings, m_, m_);
  pair.Submit(requests_.back());
  pair.RunAll();
  EXPECT_EQ(pair.clients[requests_.back().id].last.error.code(),
            absl::StatusCode::kInvalidArgument);
  pair.ExpectNoLeak();
}

TEST(AnchorOptions, CandidatesHaveTheirSizeAndTheirPlanes) {
  const KvLayout layout{30, 3, 64, KvDtype::kBf16};  // SmolLM2-135M
  const AnchorOptions all = Options("auto", layout);
  ASSERT_EQ(all.candidates.size(), 6u);
  EXPECT_EQ(all.candidates[all.fallback].name, "k4v2");
  EXPECT_TRUE(all.candidates.back().whole);
  for (size_t i = 1; i < all.candidates.size(); ++i) {
    EXPECT_GT(BytesOf(all.candidates[i], 4096), BytesOf(all.candidates[i - 1], 4096));
    EXPECT_LE(all.candidates[i].prior_error, all.candidates[i - 1].prior_error);
  }
  // docs/codecs.md, bits all in at 4096 tokens.
  const double elements = 4096.0 * 30 * 2 * 3 * 64;
  EXPECT_NEAR(BytesOf(all.candidates[2], 4096) * 8 / elements, 3.64, 0.02);
  EXPECT_NEAR(BytesOf(all.whole, 4096) * 8 / elements, 10.88, 0.05);
  EXPECT_EQ(all.candidates[2].planes[0], 3);
  EXPECT_EQ(all.candidates[2].planes[1], 1);
  EXPECT_EQ(all.whole.planes, AnchorPlanes(60, kNumPlanes));
}

TEST(AnchorOptions, ATableAddsCandidates) {
  const KvLayout layout{4, 1, 16, KvDtype::kBf16};
  AnchorWidths table = Table(4);
  const AnchorOptions all = Options("auto", layout, table);
  EXPECT_EQ(all.candidates.size(), 9u);
  EXPECT_EQ(all.candidates[all.fallback].name, "table");
  EXPECT_EQ(all.candidates[all.fallback].planes, PlanesOfWidths(table));
  table.damage.clear();
  EXPECT_EQ(Options("auto", layout, table).candidates.size(), 7u);
}

TEST(AnchorOptions, TheDefaultIsTheTableIfThereIsOne) {
  const KvLayout layout{4, 1, 16, KvDtype::kBf16};
  for (const bool has_table : {false, true}) {
    const AnchorWidths table = has_table ? Table(4) : *UniformWidths("k4v2", 4);
    const AnchorOptions options =
        Options("default", layout, has_table ? std::optional(table) : std::nullopt);
    ASSERT_EQ(options.candidates.size(), 1u);
    EXPECT_EQ(options.candidates[0].name, has_table ? "table" : "k4v2");
    EXPECT_EQ(options.candidates[0].planes, PlanesOfWidths(table));
    EXPECT_EQ(Options("k4v2", layout, table).candidates[0].name, "k4v2");
  }
}

TEST(AnchorOptions, WhatCannotBeIsNamed) {
  const KvLayout layout{4, 1, 16, KvDtype::kBf16};
  const SendPlan plan = AnchorSendPlan(*UniformWidths("k4v2", 4), true);
  for (const char* bad : {"", "k5v2", "k8v8", "table", "Auto"}) {
    EXPECT_EQ(MakeAnchorOptions(bad, {}, plan, layout).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_EQ(MakeAnchorOptions("table", Table(3), plan, layout).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lynx
