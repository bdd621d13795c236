// SPDX-License-Identifier: Apache-2.0
// The logits of a sequence are the same bits whatever the chunking, the company in the batch, the
// number of threads and the instruction set.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "tests/formats/file_builders.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/kernels_cpu/supported_targets.h"
#include "tests/model/sequence_runner.h"

namespace lynx {
namespace {

using cpu::CpuBackend;
using cpu::SameBits;
using cpu::Target;

constexpr int kNumTokens = 300;  // four full blocks and a partial one
constexpr int kMaxRows = 512;

struct InvarianceCase {
  std::string name;
  std::string path;
  Compute compute = Compute::kFast;
};

// A random Qwen2 whose every size is odd for a vector register.
std::string OddShapesModel() {
  static const TempDirectory directory;
  std::map<std::string, std::vector<int64_t>> tensors = {{"model.embed_tokens.weight", {77, 42}},
                                                         {"model.norm.weight", {42}}};
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors[layer + "input_layernorm.weight"] = {42};
    tensors[layer + "post_attention_layernorm.weight"] = {42};
    tensors[layer + "self_attn.q_proj.weight"] = {42, 42};
    tensors[layer + "self_attn.q_proj.bias"] = {42};
    tensors[layer + "self_attn.k_proj.weight"] = {14, 42};
    tensors[layer + "self_attn.k_proj.bias"] = {14};
    tensors[layer + "self_attn.v_proj.weight"] = {14, 42};
    tensors[layer + "self_attn.v_proj.bias"] = {14};
    tensors[layer + "self_attn.o_proj.weight"] = {42, 42};
    tensors[layer + "mlp.gate_proj.weight"] = {51, 42};
    tensors[layer + "mlp.up_proj.weight"] = {51, 42};
    tensors[layer + "mlp.down_proj.weight"] = {42, 51};
  }
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-0.6f, 0.6f);
  directory.Write("model.safetensors", Safetensors(tensors, [&] { return uniform(random); }));
  directory.Write("config.json", R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 77,
      "num_hidden_layers": 2, "hidden_size": 42, "intermediate_size": 51,
      "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 512,
      "tie_word_embeddings": true})");
  return directory.path();
}

std::vector<InvarianceCase> Cases() {
  const std::string own = LYNX_SOURCE_DIR "/tests/data/tiny_models/";
  const std::string shared = LYNX_SHARED_DIR "/reference/tiny_models/";
  std::vector<InvarianceCase> cases;
  for (Compute compute : {Compute::kFast, Compute::kF32}) {
    const std::string suffix = compute == Compute::kFast ? "_fast" : "_f32";
    cases.push_back({"qwen3_bf16" + suffix, own + "qwen3-qknorm", compute});
    cases.push_back(
        {"llama_q4_1" + suffix, own + "llama-gqa-tied/gguf/llama-gqa-tied.Q4_1.gguf", compute});
    cases.push_back({"odd_shapes_f32" + suffix, OddShapesModel(), compute});
    cases.push_back({"mistral_window_bf16" + suffix, shared + "mistral-sliding-16", compute});
    cases.push_back({"qwen2_bias_q8_0" + suffix,
                     shared + "qwen2-bias-outliers/gguf/qwen2-bias-outliers.Q8_0.gguf", compute});
  }
  std::erase_if(cases, [](const auto& c) { return !std::filesystem::exists(c.path); });
  return cases;
}

class InvarianceTest : public testing::TestWithParam<InvarianceCase> {
 protected:
  // Null when the model cannot be loaded.
  std::unique_ptr<SequenceRunner> Load(Target target, int num_threads) {
    runner_.reset();
    model_.reset();
    backend_ = CpuBackend::Create(
        {.compute = GetParam().compute, .num_threads = num_threads, .target = target});
    auto model = Model::Load(GetParam().path, *backend_, kMaxRows);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return nullptr;
    model_ = *std::move(model);
    return std::make_unique<SequenceRunner>(*model_, 64);
  }

  std::unique_ptr<CpuBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<SequenceRunner> runner_;
};

TEST_P(InvarianceTest, SameBits) {
  runner_ = Load(Target::kScalar, 1);
  ASSERT_NE(runner_, nullptr);
  const std::vector<float> want = LogitsAlone(*runner_, kNumTokens, kMaxRows);
  for (Target target : cpu::SupportedTargets()) {
    for (int num_threads : {1, 2}) {
      runner_ = Load(target, num_threads);
      ASSERT_NE(runner_, nullptr);
      SCOPED_TRACE(absl::StrCat(backend_->target(), ", ", num_threads, " threads"));
      for (int chunk : {1, 7, 64, kMaxRows}) {
        SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
        EXPECT_TRUE(SameBits(want, LogitsAlone(*runner_, kNumTokens, chunk)));
      }
      SCOPED_TRACE("in company");
      EXPECT_TRUE(SameBits(want, LogitsInCompany(*runner_, kNumTokens, 64)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InvarianceTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lynx
