// SPDX-License-Identifier: Apache-2.0
// config.json with the fields and numbers of well-known models, without what says nothing of the
// computation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/model_description.h"
#include "tests/formats/file_builders.h"

namespace lynx {
namespace {

struct Published {
  const char* name;
  const char* config;
  const char* generation_config;
  ModelConfig want;  // of the RoPE only theta, scaling and factor
};

const Published kPublished[] = {
    {.name = "Llama-2-7b-chat",
     .config = R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
       "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
       "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
       "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
       "rms_norm_eps": 1e-05, "rope_scaling": null, "tie_word_embeddings": false,
       "torch_dtype": "float16", "use_cache": true, "vocab_size": 32000})",
     .generation_config = R"({"bos_token_id": 1, "do_sample": true, "eos_token_id": 2,
       "pad_token_id": 0, "temperature": 0.6, "max_length": 4096, "top_p": 0.9})",
     .want = {.architecture = Architecture::kLlama,
              .num_layers = 32,
              .hidden_size = 4096,
              .intermediate_size = 11008,
              .num_heads = 32,
              .num_kv_heads = 32,
              .head_dim = 128,
              .vocab_size = 32000,
              .max_model_len = 4096,
              .rms_norm_eps = 1e-5f,
              .eos_ids = {2},
              .bos_id = 1}},
    {.name = "Llama-3.2-1B-Instruct",
     .config = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
       "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
       "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
       "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
       "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
       "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
       "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
       "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
       "torch_dtype": "bfloat16", "vocab_size": 128256})",
     .generation_config = R"({"bos_token_id": 128000, "do_sample": true,
       "eos_token_id": [128001, 128008, 128009], "temperature": 0.6, "top_p": 0.9})",
     .want = {.architecture = Architecture::kLlama,
              .num_layers = 16,
              .hidden_size = 2048,
              .intermediate_size = 8192,
              .num_heads = 32,
              .num_kv_heads = 8,
              .head_dim = 64,
              .vocab_size = 128256,
              .max_model_len = 131072,
              .rms_norm_eps = 1e-5f,
              .tie_word_embeddings = true,
              .rope = {.theta = 500000, .scaling = RopeScaling::kLlama3, .factor = 32},
              .eos_ids = {128001, 128008, 128009},
              .bos_id = 128000}},
    {.name = "SmolLM2-360M-Instruct",
     .config = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
       "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 960,
       "intermediate_size": 2560, "is_llama_config": true, "max_position_embeddings": 8192,
       "mlp_bias": false, "model_type": "llama", "num_attention_heads": 15,
       "num_hidden_layers": 32, "num_key_value_heads": 5, "pad_token_id": 2, "pretraining_tp": 1,
       "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
       "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
       "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
       "vocab_size": 49152})",
     .generation_config = R"({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})",
     .want = {.architecture = Architecture::kLlama,
              .num_layers = 32,
              .hidden_size = 960,
              .intermediate_size = 2560,
              .num_heads = 15,
              .num_kv_heads = 5,
              .head_dim = 64,
              .vocab_size = 49152,
              .max_model_len = 8192,
              .rms_norm_eps = 1e-5f,
              .tie_word_embeddings = true,
              .rope = {.theta = 100000},
              .eos_ids = {2},
              .bos_id = 1}},
    {.name = "Mistral-7B-v0.1",
     .config = R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
       "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
       "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
       "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
       "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
       "vocab_size": 32000})",
     .generation_config = R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2})",
     .want = {.architecture = Architecture::kMistral,
              .num_layers = 32,
              .hidden_size = 4096,
              .intermediate_size = 14336,
              .num_heads = 32,
              .num_kv_heads = 8,
              .head_dim = 128,
              .vocab_size = 32000,
              .max_model_len = 32768,
              .rms_norm_eps = 1e-5f,
              .sliding_window = 4096,
              .eos_ids = {2},
              .bos_id = 1}},
    {.name = "Mistral-Nemo-Instruct-2407",
     .config = R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
       "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu",
       "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072,
       "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
       "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
       "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 131072})",
     .generation_config = R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2})",
     .want = {.architecture = Architecture::kMistral,
              .num_layers = 40,
              .hidden_size = 5120,
              .intermediate_size = 14336,
              .num_heads = 32,
              .num_kv_heads = 8,
              .head_dim = 128,
              .vocab_size = 131072,
              .max_model_len = 131072,
              .rms_norm_eps = 1e-5f,
              .rope = {.theta = 1e6},
              .eos_ids = {2},
              .bos_id = 1}},
    // With the rope_scaling that its card tells to add for long texts.
    {.name = "Qwen2.5-7B-Instruct",
     .config = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
       "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
       "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
       "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
       "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
       "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
       "sliding_window": 131072, "tie_word_embeddings": false, "use_sliding_window": false,
       "vocab_size": 152064})",
     .generation_config = R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
       "eos_token_id": [151645, 151643], "repetition_penalty": 1.05, "temperature": 0.7,
       "top_p": 0.8, "top_k": 20})",
     .want = {.architecture = Architecture::kQwen2,
              .num_layers = 28,
              .hidden_size = 3584,
              .intermediate_size = 18944,
              .num_heads = 28,
              .num_kv_heads = 4,
              .head_dim = 128,
              .vocab_size = 152064,
              .max_model_len = 131072,
              .rms_norm_eps = 1e-6f,
              .rope = {.theta = 1e6, .scaling = RopeScaling::kYarn, .factor = 4},
              .eos_ids = {151645, 151643},
              .bos_id = 151643}},
    {.name = "Qwen3-0.6B",
     .config = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
       "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
       "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
       "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
       "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
       "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
       "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
       "vocab_size": 151936})",
     .generation_config = R"({"bos_token_id": 151643, "do_sample": true,
       "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6,
       "top_k": 20, "top_p": 0.95})",
     .want = {.architecture = Architecture::kQwen3,
              .num_layers = 28,
              .hidden_size = 1024,
              .intermediate_size = 3072,
              .num_heads = 16,
              .num_kv_heads = 8,
              .head_dim = 128,
              .vocab_size = 151936,
              .max_model_len = 40960,
              .rms_norm_eps = 1e-6f,
              .tie_word_embeddings = true,
              .rope = {.theta = 1e6},
              .eos_ids = {151645, 151643},
              .bos_id = 151643}},
};

TEST(PublishedConfigsTest, MeanWhatTheirAuthorsMean) {
  for (const Published& published : kPublished) {
    SCOPED_TRACE(published.name);
    const TempDirectory directory;
    directory.Write("config.json", published.config);
    directory.Write("generation_config.json", published.generation_config);
    const auto description = ReadHfDescription(directory.path());
    ASSERT_TRUE(description.ok()) << description.status();
    const ModelConfig& got = description->config;
    const ModelConfig& want = published.want;
    EXPECT_EQ(got.architecture, want.architecture);
    EXPECT_EQ(got.num_layers, want.num_layers);
    EXPECT_EQ(got.hidden_size, want.hidden_size);
    EXPECT_EQ(got.intermediate_size, want.intermediate_size);
    EXPECT_EQ(got.num_heads, want.num_heads);
    EXPECT_EQ(got.num_kv_heads, want.num_kv_heads);
    EXPECT_EQ(got.head_dim, want.head_dim);
    EXPECT_EQ(got.vocab_size, want.vocab_size);
    EXPECT_EQ(got.max_model_len, want.max_model_len);
    EXPECT_EQ(got.rms_norm_eps, want.rms_norm_eps);
    EXPECT_EQ(got.sliding_window, want.sliding_window);
    EXPECT_EQ(got.tie_word_embeddings, want.tie_word_embeddings);
    EXPECT_EQ(got.rope.theta, want.rope.theta);
    EXPECT_EQ(got.rope.scaling, want.rope.scaling);
    EXPECT_EQ(got.rope.factor, want.rope.factor);
    EXPECT_EQ(got.eos_ids, want.eos_ids);
    EXPECT_EQ(got.bos_id, want.bos_id);
    const bool is_qwen2 = want.architecture == Architecture::kQwen2;
    EXPECT_EQ(description->qkv_bias, is_qwen2 ? Presence::kRequired : Presence::kForbidden);
    EXPECT_EQ(description->output_bias, Presence::kForbidden);
  }
}

}  // namespace
}  // namespace lynx
