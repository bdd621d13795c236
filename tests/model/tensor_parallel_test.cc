// SPDX-License-Identifier: Apache-2.0
// A model divided among ranks: close to the undivided one, the same bits in every run, row by row
// as independent as the undivided one, and each head's KV where KvPoolView says.
#include "model/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "tests/formats/file_builders.h"
#include "tests/kernels_cpu/float_vectors.h"
#include "tests/model/cpu_ranks.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/smollm.h"

namespace lynx {
namespace {

using cpu::CpuBackend;
using cpu::SameBits;
using cpu::Target;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNumTokens = 136;  // two full blocks and a partial one
constexpr int kMaxRows = 256;

const std::string kTinyModels = LYNX_SOURCE_DIR "/tests/data/tiny_models/";

// A random Llama with every kind of bias, six KV heads, and a vocabulary that no rank count
// divides.
std::string BiasedModel() {
  static const TempDirectory directory;
  std::map<std::string, std::vector<int64_t>> tensors = {{"model.embed_tokens.weight", {77, 48}},
                                                         {"model.norm.weight", {48}}};
  tensors["model.layers.2.self_attn.o_proj.weight"] = {5};  // of no layer that the model has
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    tensors[layer + "input_layernorm.weight"] = {48};
    tensors[layer + "post_attention_layernorm.weight"] = {48};
    const std::vector<std::tuple<std::string, int64_t, int64_t>> linears = {
        {"self_attn.q_proj", 192, 48}, {"self_attn.k_proj", 96, 48}, {"self_attn.v_proj", 96, 48},
        {"self_attn.o_proj", 48, 192}, {"mlp.gate_proj", 96, 48},    {"mlp.up_proj", 96, 48},
        {"mlp.down_proj", 48, 96}};
    for (const auto& [name, n, k] : linears) {
      tensors[layer + name + ".weight"] = {n, k};
      tensors[layer + name + ".bias"] = {n};
    }
  }
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-0.3f, 0.3f);
  directory.Write("model.safetensors", Safetensors(tensors, [&] { return uniform(random); }));
  directory.Write("config.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 77,
      "num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96, "head_dim": 16,
      "num_attention_heads": 12, "num_key_value_heads": 6, "max_position_embeddings": 512,
      "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true})");
  return directory.path();
}

std::vector<float> AllLogits(Model& model, int chunk) {
  SequenceRunner runner(model, 16);
  return LogitsAlone(runner, kNumTokens, chunk);
}

float LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

struct Undivided {
  explicit Undivided(const std::string& path, Compute compute)
      : backend(CpuBackend::Create({.compute = compute})),
        model(*Model::Load(path, *backend, kMaxRows)) {}
  std::unique_ptr<CpuBackend> backend;
  std::unique_ptr<Model> model;
};

struct RanksCase {
  std::string name;
  std::string path;
  int num_ranks;
};

std::vector<RanksCase> Cases() {
  const std::string shared = LYNX_SHARED_DIR "/reference/tiny_models/";
  std::vector<RanksCase> cases = {{"qwen3_2", kTinyModels + "qwen3-qknorm", 2},
                                  {"biased_2", BiasedModel(), 2},
                                  {"biased_3", BiasedModel(), 3},
                                  {"biased_6", BiasedModel(), 6},
                                  {"window_2", shared + "mistral-sliding-16", 2},
                                  {"untied_2", shared + "llama-gqa-untied-sharded", 2}};
  std::erase_if(cases, [](const auto& c) { return !std::filesystem::exists(c.path); });
  return cases;
}

class TensorParallelTest : public testing::TestWithParam<RanksCase> {
 protected:
  CpuRanks Load(const CpuBackend::Options& options) {
    auto ranks = CpuRanks::Load(GetParam().path, GetParam().num_ranks, options, kMaxRows);
    EXPECT_TRUE(ranks.ok()) << ranks.status();
    return *std::move(ranks);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, TensorParallelTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

// docs/numerics.md, "Tensor parallelism", derives both bounds.
TEST_P(TensorParallelTest, LogitsAreCloseToTheUndividedModels) {
  const auto f32 = AllLogits(*Undivided(GetParam().path, Compute::kF32).model, kMaxRows);
  const auto f32_ranks = AllLogits(*Load({.compute = Compute::kF32}).model, kMaxRows);
  EXPECT_LT(LargestDifference(f32, f32_ranks), 1e-3f);
  const auto fast = AllLogits(*Undivided(GetParam().path, Compute::kFast).model, kMaxRows);
  const auto fast_ranks = AllLogits(*Load({}).model, kMaxRows);
  EXPECT_LE(LargestDifference(fast, fast_ranks), 2 * LargestDifference(fast, f32));
}

TEST_P(TensorParallelTest, SameBitsInEveryRunChunkingCompanyAndThreadCount) {
  for (Compute compute : {Compute::kFast, Compute::kF32}) {
    const auto want = AllLogits(*Load({.compute = compute}).model, kMaxRows);
    for (int num_threads : {1, 2}) {
      const CpuRanks ranks = Load({.compute = compute, .num_threads = num_threads});
      for (int chunk : {1, 50, kMaxRows}) {
        EXPECT_TRUE(SameBits(want, AllLogits(*ranks.model, chunk))) << chunk;
      }
      SequenceRunner runner(*ranks.model, 16);
      EXPECT_TRUE(SameBits(want, LogitsInCompany(runner, kNumTokens, 64)));
    }
    const CpuRanks scalar = Load({.compute = compute, .target = Target::kScalar});
    EXPECT_TRUE(SameBits(want, AllLogits(*scalar.model, 64)));
  }
}

// K and V of the first layer come before any sum: the ranks' heads are the undivided model's.
TEST_P(TensorParallelTest, EveryHeadLiesWhereThePoolSays) {
  const Undivided whole(GetParam().path, Compute::kFast);
  const CpuRanks ranks = Load({});
  ASSERT_EQ(ranks.model->kv_layout(), whole.model->kv_layout());
  EXPECT_EQ(ranks.model->hash(), whole.model->hash());
  EXPECT_EQ(ranks.model->weight_bytes(), whole.model->weight_bytes());
  SequenceRunner a(*whole.model, 4), b(*ranks.model, 4);
  const auto tokens = RandomTokens(64, a.vocab_size(), 3);
  TestSequence sa = a.NewSequence(64), sb = b.NewSequence(64);
  a.Feed(sa, tokens, 64, SequenceRunner::Rows::kLast);
  b.Feed(sb, tokens, 64, SequenceRunner::Rows::kLast);
  EXPECT_EQ(b.pool().num_shards(), GetParam().num_ranks);
  for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
    for (int head = 0; head < a.pool().layout.num_kv_heads; ++head) {
      EXPECT_EQ(std::memcmp(a.pool().tile(sa.block_table[0], 0, kind, head),
                            b.pool().tile(sb.block_table[0], 0, kind, head),
                            a.pool().layout.tile_bytes()),
                0)
          << head;
    }
  }
}

TEST_P(TensorParallelTest, AfterLayerComesWhenAllHeadsAreWritten) {
  const CpuRanks ranks = Load({});
  Model& model = *ranks.model;
  const auto cache = *KvCache::Create(model.backends(), model.kv_layout(), 4);
  const KvPoolView& pool = cache->view();
  const auto tokens = RandomTokens(64, model.config().vocab_size, 3);
  std::vector<int32_t> positions(64);
  for (int i = 0; i < 64; ++i) positions[i] = i;
  const BlockId block = 2;
  const RowGroup group{.num_rows = 64, .block_table = &block};
  const auto layer_bytes = [&](int layer) {
    std::vector<std::byte> bytes;
    for (KvKind kind : {KvKind::kKey, KvKind::kValue}) {
      for (int head = 0; head < pool.layout.num_kv_heads; ++head) {
        const std::byte* tile = pool.tile(block, layer, kind, head);
        bytes.insert(bytes.end(), tile, tile + pool.layout.tile_bytes());
      }
    }
    return bytes;
  };
  std::vector<std::vector<std::byte>> seen;
  model.Forward({.tokens = tokens, .positions = positions, .groups = {&group, 1}}, pool, nullptr,
                [&](int layer) {
                  EXPECT_EQ(layer, static_cast<int>(seen.size()));
                  seen.push_back(layer_bytes(layer));
                });
  ASSERT_EQ(static_cast<int>(seen.size()), pool.layout.num_layers);
  for (int layer = 0; layer < pool.layout.num_layers; ++layer) {
    EXPECT_EQ(seen[layer], layer_bytes(layer));
  }
}

std::string WhyNot(const std::string& path, int num_ranks) {
  const auto ranks = CpuRanks::Load(path, num_ranks, {}, 16);
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(ranks.status().message());
}

TEST(TensorParallelRefusals, NameTheSizes) {
  EXPECT_THAT(WhyNot(kTinyModels + "llama-gqa-tied/gguf/llama-gqa-tied.Q4_1.gguf", 2),
              AllOf(HasSubstr("tensor_parallel_size: 2 ranks cannot share the KV heads"),
                    HasSubstr("1 is not a multiple of 2")));
  EXPECT_THAT(WhyNot(BiasedModel(), 4), HasSubstr("the KV heads: 6"));
  const std::string quantized =
      LYNX_SHARED_DIR "/reference/tiny_models/llama-rope-linear/gguf/llama-rope-linear.Q8_0.gguf";
  if (!std::filesystem::exists(quantized)) GTEST_SKIP() << "no reference models";
  EXPECT_THAT(WhyNot(quantized, 4), AllOf(HasSubstr("blk.0.attn_output.weight"),
                                          HasSubstr("64 is not a multiple of 4 blocks of 32")));
}

// Three KV heads, quantized weights.
TEST(TensorParallelSmolLm, ThreeRanksAreCloseToOne) {
  if (!std::filesystem::exists(SmolLmPath())) GTEST_SKIP() << "no model at " << SmolLmPath();
  const auto tokens = RandomTokens(24, 40000, 1);
  const auto last_row = [&](Model& model) {
    SequenceRunner runner(model, 4);
    TestSequence sequence = runner.NewSequence(64);
    return runner.Feed(sequence, tokens, 16, SequenceRunner::Rows::kLast);
  };
  const auto f32 = last_row(*Undivided(SmolLmPath(), Compute::kF32).model);
  const auto fast = last_row(*Undivided(SmolLmPath(), Compute::kFast).model);
  auto ranks = CpuRanks::Load(SmolLmPath(), 3, {}, kMaxRows);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const auto fast_ranks = last_row(*ranks->model);
  EXPECT_LE(LargestDifference(fast, fast_ranks), 2 * LargestDifference(fast, f32));
  EXPECT_TRUE(SameBits(fast_ranks, last_row(*ranks->model)));
  auto f32_ranks = CpuRanks::Load(SmolLmPath(), 3, {.compute = Compute::kF32}, kMaxRows);
  ASSERT_TRUE(f32_ranks.ok()) << f32_ranks.status();
  EXPECT_LT(LargestDifference(f32, last_row(*f32_ranks->model)), 2e-3f);
}

}  // namespace
}  // namespace lynx
