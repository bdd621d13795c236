// SPDX-License-Identifier: Apache-2.0
// The prompts of `lynx bench accuracy`, and its measurement on a tiny model.
#include "bench/accuracy/kv_accuracy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "tests/model/tiny_model_paths.h"

namespace lynx {
namespace {

using ::testing::HasSubstr;

// Numbered sentences, so that every window is another text.
std::string Corpus() {
  std::string text;
  for (int i = 0; i < 400; ++i) absl::StrAppend(&text, "Line ", i * 7919 % 1000, " of the text.\n");
  return text;
}

class KvAccuracyTest : public ::testing::Test {
 protected:
  KvAccuracyTest() {
    auto tokenizer = Tokenizer::Load(kTinyLlama);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    source_ = {Corpus(), *std::move(tokenizer), {.before = "Q: ", .after = "\nA:"}};
    auto model = Model::Load(kTinyLlama, *backend_, kAccuracyChunk);
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  std::vector<AccuracyPrompt> Prompts(int num_tokens, int n) {
    auto prompts = BuildAccuracyPrompts(source_, num_tokens, n);
    EXPECT_TRUE(prompts.ok()) << prompts.status();
    return *std::move(prompts);
  }
  PromptScore Score(const AccuracyPrompt& prompt, std::string_view codec_name, int num_planes) {
    const auto codec = *MakeCodec(codec_name, *backend_);
    const SendPlan plan{{std::vector<int>(model_->config().num_layers * 2, num_planes)}};
    const auto pages = *KvPageCodec::Create(*codec, plan, model_->kv_layout());
    auto accuracy =
        KvAccuracy::Create(*model_, *source_.tokenizer, static_cast<int>(prompt.tokens.size()),
                           /*num_threads=*/2);
    EXPECT_TRUE(accuracy.ok()) << accuracy.status();
    EXPECT_TRUE((*accuracy)->SetPrompt(prompt).ok());
    auto score = (*accuracy)->Evaluate(*pages);
    EXPECT_TRUE(score.ok()) << score.status();
    return *std::move(score);
  }

  std::unique_ptr<Backend> backend_ = cpu::CpuBackend::Create({.num_threads = 1});
  PromptSource source_;
  std::unique_ptr<Model> model_;
};

TEST_F(KvAccuracyTest, PromptsHaveTheirLengthAndFactsAndAreTheSameEveryTime) {
  const auto prompts = Prompts(600, 3), again = Prompts(600, 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(prompts[i].tokens.size(), 600u);
    EXPECT_EQ(prompts[i].tokens, again[i].tokens);
    EXPECT_EQ(prompts[i].continuation.size(), size_t{kContinuationTokens});
    const std::string text = source_.tokenizer->Decode(prompts[i].tokens, true);
    EXPECT_THAT(text, HasSubstr("Q: "));
    ASSERT_EQ(prompts[i].needles.size(), size_t{kNumNeedles});
    for (const NeedleQuestion& q : prompts[i].needles) {
      EXPECT_THAT(text, HasSubstr(q.code));
      EXPECT_THAT(source_.tokenizer->Decode(q.tail, true),
                  HasSubstr("\nA:The secret access code for"));
    }
  }
  EXPECT_NE(prompts[0].tokens, prompts[1].tokens);
}

TEST_F(KvAccuracyTest, LengthsThatDoNotFitAreRefused) {
  for (const int num_tokens : {70, 1000000}) {
    const auto prompts = BuildAccuracyPrompts(source_, num_tokens, 1);
    EXPECT_EQ(prompts.status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(KvAccuracy::Create(*model_, *source_.tokenizer, 1 << 20, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KvAccuracyTest, LosslessCodecsChangeNothing) {
  const AccuracyPrompt prompt = Prompts(380, 1)[0];
  for (const auto& [name, num_planes] :
       {std::pair("bf16", 1), std::pair("bf16-lossless", 1), std::pair("planes", 5)}) {
    const PromptScore score = Score(prompt, name, num_planes);
    const AccuracySummary s = Summarize({&score, 1});
    EXPECT_EQ(s.agreement, 1) << name;
    EXPECT_EQ(s.true_agreement, 1) << name;
    EXPECT_EQ(s.kl, 0) << name;
    EXPECT_EQ(s.ppl_ratio, 1) << name;
    EXPECT_EQ(s.accepted_16, 16) << name;
    EXPECT_EQ(s.accepted_32, 32) << name;
    EXPECT_EQ(s.runs, std::vector<int>{64}) << name;
    EXPECT_EQ(s.num_needles_kept, s.num_needles) << name;
    for (const SquaredError& e : s.layer_error) {
      EXPECT_EQ(e.error, 0) << name;
      EXPECT_GT(e.power, 0) << name;
    }
  }
}

TEST_F(KvAccuracyTest, CoarserCodesCostMoreAndAllBytesAreCounted) {
  const AccuracyPrompt prompt = Prompts(380, 1)[0];
  const PromptScore int8 = Score(prompt, "int8", 1), int4 = Score(prompt, "int4", 1);
  const AccuracySummary fine = Summarize({&int8, 1}), coarse = Summarize({&int4, 1});
  EXPECT_GT(fine.kl, 0);
  EXPECT_GT(coarse.kl, fine.kl);
  const int head_dim = model_->config().head_dim;
  // A page's plane has a length of 4 bytes.
  EXPECT_NEAR(fine.bits_per_element, 8 + 16.0 / head_dim, 0.01);
  EXPECT_GE(fine.bits_per_element, 8 + 16.0 / head_dim);
  for (size_t i = 0; i < fine.layer_error.size(); ++i) {
    EXPECT_GT(fine.layer_error[i].error, 0);
    EXPECT_GT(coarse.layer_error[i].error, fine.layer_error[i].error);
  }
}

}  // namespace
}  // namespace lynx
