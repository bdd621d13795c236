// SPDX-License-Identifier: Apache-2.0
// Hugging Face directories: one file, shards, and what an index may say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "formats/model_files.h"
#include "tests/formats/file_builders.h"

namespace lynx {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Shapes = std::map<std::string, std::vector<int64_t>>;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() { WriteConfig(json::object()); }

  void WriteConfig(const json& changes) {
    json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"num_hidden_layers", 1},
                   {"hidden_size", 8},
                   {"intermediate_size", 12},
                   {"num_attention_heads", 2},
                   {"num_key_value_heads", 1},
                   {"vocab_size", 3},
                   {"max_position_embeddings", 64},
                   {"tie_word_embeddings", true}};
    config.update(changes);
    directory_.Write("config.json", config.dump());
  }
  static Shapes TinyLlama() {
    return {{"model.embed_tokens.weight", {3, 8}},
            {"model.norm.weight", {8}},
            {"model.layers.0.input_layernorm.weight", {8}},
            {"model.layers.0.post_attention_layernorm.weight", {8}},
            {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
            {"model.layers.0.self_attn.k_proj.weight", {4, 8}},
            {"model.layers.0.self_attn.v_proj.weight", {4, 8}},
            {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
            {"model.layers.0.mlp.gate_proj.weight", {12, 8}},
            {"model.layers.0.mlp.up_proj.weight", {12, 8}},
            {"model.layers.0.mlp.down_proj.weight", {8, 12}}};
  }
  // Writes the tensors as two shards and returns the index that lists them.
  json WriteShards() {
    Shapes first = TinyLlama(), second;
    json weight_map;
    while (first.size() > 5) second.insert(first.extract(first.begin()));
    for (const auto& [name, shape] : first) weight_map[name] = "a.safetensors";
    for (const auto& [name, shape] : second) weight_map[name] = "b.safetensors";
    directory_.Write("a.safetensors", Safetensors(first));
    directory_.Write("b.safetensors", Safetensors(second));
    return {{"weight_map", weight_map}};
  }
  void WriteIndex(const json& index) {
    directory_.Write("model.safetensors.index.json", index.dump());
  }
  std::string Error() {
    const auto files = ModelFiles::Open(directory_.path());
    EXPECT_EQ(files.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(files.status().message());
  }

  TempDirectory directory_;
};

TEST_F(SafetensorsTest, OneFile) {
  directory_.Write("model.safetensors", Safetensors(TinyLlama()));
  const auto files = ModelFiles::Open(directory_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->format(), "safetensors");
  EXPECT_EQ((*files)->tensors().size(), 11u);
  const TensorInfo* down = (*files)->Find("model.layers.0.mlp.down_proj.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->bytes, 8u * 12 * 4);
  EXPECT_TRUE(down->row_order.empty());
}

TEST_F(SafetensorsTest, Shards) {
  WriteIndex(WriteShards());
  const auto files = ModelFiles::Open(directory_.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->tensors().size(), 11u);
}

TEST_F(SafetensorsTest, AnIndexNamesOnlyFilesBesideIt) {
  const json valid = WriteShards();
  for (const char* path : {"/dev/zero", "../x.safetensors", "sub/x.safetensors", "..", ""}) {
    json index = valid;
    index["weight_map"]["model.norm.weight"] = path;
    WriteIndex(index);
    EXPECT_THAT(Error(), HasSubstr("weight_map.model.norm.weight: path")) << path;
  }
  json index = valid;
  index["weight_map"]["model.norm.weight"] = "c.safetensors";
  WriteIndex(index);
  EXPECT_THAT(Error(), HasSubstr("c.safetensors: No such file"));
}

TEST_F(SafetensorsTest, ATensorThatItsShardLacks) {
  json index = WriteShards();
  index["weight_map"]["ghost"] = "a.safetensors";
  WriteIndex(index);
  EXPECT_THAT(Error(), HasSubstr("index.json: tensor ghost: is not in a.safetensors"));
}

TEST_F(SafetensorsTest, BiasesMustMatchTheConfiguration) {
  Shapes tensors = TinyLlama();
  tensors["model.layers.0.self_attn.q_proj.bias"] = {8};
  directory_.Write("model.safetensors", Safetensors(tensors));
  EXPECT_THAT(Error(), HasSubstr("q_proj.bias: present, but"));
  WriteConfig({{"attention_bias", true}});
  EXPECT_THAT(Error(), HasSubstr("k_proj.bias: missing"));
}

TEST_F(SafetensorsTest, AnUntiedHeadMustExist) {
  directory_.Write("model.safetensors", Safetensors(TinyLlama()));
  WriteConfig({{"tie_word_embeddings", false}});
  EXPECT_THAT(Error(), HasSubstr("tensor lm_head.weight: missing"));
}

// Bytes of the header changed or the file cut: an answer or an error, never a crash.
TEST_F(SafetensorsTest, SurvivesMutations) {
  const std::string valid = Safetensors(TinyLlama());
  const std::string printable = "0123456789[]{}\":,-e.";
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = valid;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % 900] = printable[random() % printable.size()];
    }
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    directory_.Write("model.safetensors", bytes);
    const auto files = ModelFiles::Open(directory_.path());
    if (files.ok()) continue;
    EXPECT_EQ(files.status().message().find('\n'), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace lynx
