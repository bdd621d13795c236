// SPDX-License-Identifier: Apache-2.0
// The dialects and defaults of config.json and generation_config.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "formats/model_description.h"
#include "tests/formats/file_builders.h"

namespace lynx {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class HfConfigTest : public testing::Test {
 protected:
  static json Config(const char* architecture) {
    return {{"architectures", {architecture}},
            {"num_hidden_layers", 4},
            {"hidden_size", 64},
            {"intermediate_size", 96},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"vocab_size", 100},
            {"max_position_embeddings", 512}};
  }
  static json Llama(const json& changes = json::object()) {
    json config = Config("LlamaForCausalLM");
    config.update(changes);
    return config;
  }
  absl::StatusOr<ModelDescription> Read(const json& config) {
    directory_.Write("config.json", config.dump());
    return ReadHfDescription(directory_.path());
  }
  ModelConfig Good(const json& config) {
    auto description = Read(config);
    EXPECT_TRUE(description.ok()) << description.status();
    return description.ok() ? description->config : ModelConfig{};
  }
  std::string Bad(const json& config) {
    const auto description = Read(config);
    EXPECT_EQ(description.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(description.status().message());
  }

  TempDirectory directory_;
};

TEST_F(HfConfigTest, RopeInThreeDialects) {
  const json linear = {{"factor", 4.0}};
  json typed = linear, rope_typed = linear, parameters = linear;
  typed["type"] = "linear";
  rope_typed["rope_type"] = "linear";
  parameters.update({{"rope_type", "linear"}, {"rope_theta", 5e5}});
  for (const json& dialect : {json{{"rope_theta", 5e5}, {"rope_scaling", typed}},
                              json{{"rope_theta", 5e5}, {"rope_scaling", rope_typed}},
                              json{{"rope_parameters", parameters}}}) {
    const RopeConfig rope = Good(Llama(dialect)).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLinear) << dialect;
    EXPECT_EQ(rope.factor, 4.0) << dialect;
    EXPECT_EQ(rope.theta, 5e5) << dialect;
  }
  EXPECT_EQ(Good(Llama({{"rope_scaling", nullptr}})).rope.scaling, RopeScaling::kNone);
  EXPECT_THAT(Bad(Llama({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}})),
              HasSubstr("config.json: rope_scaling.rope_type: dynamic is not supported"));
  EXPECT_THAT(Bad(Llama({{"partial_rotary_factor", 0.5}})), HasSubstr("partial_rotary_factor"));
}

TEST_F(HfConfigTest, YarnStretchesTheContextAndScalesAttention) {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 512}};
  const ModelConfig config = Good(Llama({{"rope_scaling", yarn}}));
  EXPECT_EQ(config.max_model_len, 2048);
  EXPECT_NEAR(config.rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  yarn.update({{"mscale", 2.0}, {"mscale_all_dim", 1.0}});
  EXPECT_NEAR(Good(Llama({{"rope_scaling", yarn}})).rope.attention_factor,
              (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1), 1e-12);
  yarn["attention_factor"] = 1.5;
  EXPECT_EQ(Good(Llama({{"rope_scaling", yarn}})).rope.attention_factor, 1.5);
}

TEST_F(HfConfigTest, SlidingWindowOfEachArchitecture) {
  EXPECT_EQ(Good(Llama({{"sliding_window", 16}})).sliding_window, 0);
  json mistral = Config("MistralForCausalLM");
  EXPECT_EQ(Good(mistral).sliding_window, 4096);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Good(mistral).sliding_window, 0);
  mistral["sliding_window"] = 16;
  EXPECT_EQ(Good(mistral).sliding_window, 16);
  json qwen = Config("Qwen2ForCausalLM");
  qwen["sliding_window"] = 16;
  qwen["use_sliding_window"] = false;
  EXPECT_EQ(Good(qwen).sliding_window, 0);
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(Good(qwen).sliding_window, 0);  // from layer 28 on, of 4
  qwen["max_window_layers"] = 0;
  EXPECT_EQ(Good(qwen).sliding_window, 16);
  qwen["max_window_layers"] = 2;
  EXPECT_THAT(Bad(qwen), HasSubstr("max_window_layers: 2 of 4 layers"));
}

TEST_F(HfConfigTest, HeadsAndBiases) {
  json config = Llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(Good(config).num_kv_heads, 4);
  EXPECT_EQ(Good(config).head_dim, 16);
  config = Config("MistralForCausalLM");
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Good(config).num_kv_heads, 4);
  config.erase("num_key_value_heads");  // 8 by default, which is not everybody's
  EXPECT_THAT(Bad(config), HasSubstr("num_key_value_heads: missing"));
  EXPECT_EQ(Good(Config("Qwen3ForCausalLM")).head_dim, 128);
  EXPECT_EQ(Good(Llama({{"head_dim", 24}})).head_dim, 24);
  EXPECT_THAT(Bad(Llama({{"head_dim", 15}})), HasSubstr("head_dim: 15"));
  EXPECT_EQ(Read(Config("Qwen2ForCausalLM"))->qkv_bias, Presence::kRequired);
  EXPECT_EQ(Read(Config("Qwen2ForCausalLM"))->output_bias, Presence::kForbidden);
  EXPECT_EQ(Read(Llama({{"attention_bias", true}}))->output_bias, Presence::kRequired);
  EXPECT_EQ(Read(Llama())->mlp_bias, Presence::kForbidden);
}

TEST_F(HfConfigTest, EndIdsFromTheFirstFileThatHasThem) {
  EXPECT_THAT(Good(Llama()).eos_ids, IsEmpty());
  const json config = Llama({{"eos_token_id", 7}, {"bos_token_id", 3}});
  EXPECT_THAT(Good(config).eos_ids, ElementsAre(7));
  directory_.Write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_THAT(Good(config).eos_ids, ElementsAre(8, 9));
  EXPECT_EQ(Good(config).bos_id, 3);
  directory_.Write("generation_config.json", R"({"eos_token_id": 100})");
  EXPECT_THAT(Bad(config), HasSubstr("generation_config.json: eos_token_id: 100 is not in 0..99"));
  directory_.Write("generation_config.json", "{");
  EXPECT_THAT(Bad(config), HasSubstr("generation_config.json: JSON"));
}

TEST_F(HfConfigTest, RefusesWhatItCannotCompute) {
  EXPECT_THAT(Bad(Llama({{"quantization_config", {{"bits", 4}}}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(Bad(Llama({{"hidden_size", 1e300}})), HasSubstr("hidden_size"));
  EXPECT_THAT(Bad(Llama({{"vocab_size", ~uint64_t{0}}})), HasSubstr("vocab_size"));
  EXPECT_THAT(Bad(Llama({{"tie_word_embeddings", "yes"}})), HasSubstr("is not true or false"));
}

}  // namespace
}  // namespace lynx
