// SPDX-License-Identifier: Apache-2.0
// config.json in its three dialects: `rope_parameters` (transformers 5), `rope_theta` with
// `rope_scaling` (4.x), and `rope_scaling` with "type" instead of "rope_type" (older).
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "formats/file_error.h"
#include "formats/json_object.h"
#include "formats/limits.h"
#include "formats/model_description.h"

namespace lynx {
namespace {

struct ArchitectureName {
  Architecture architecture;
  const char* class_name;
  const char* model_type;
};
constexpr std::array<ArchitectureName, 4> kArchitectures = {{
    {Architecture::kLlama, "LlamaForCausalLM", "llama"},
    {Architecture::kMistral, "MistralForCausalLM", "mistral"},
    {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
    {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
}};

bool IsQwen(Architecture a) { return a == Architecture::kQwen2 || a == Architecture::kQwen3; }

absl::StatusOr<Architecture> ReadArchitecture(const JsonObject& json) {
  if (json.Has("architectures")) {
    const auto& list = json.json().at("architectures");
    if (!list.is_array() || list.empty() || !list[0].is_string()) {
      return json.Error("architectures", "not a list of names");
    }
    const auto& name = list[0].get_ref<const std::string&>();
    for (const auto& known : kArchitectures) {
      if (name == known.class_name) return known.architecture;
    }
    return json.Error("architectures", absl::StrCat(Printable(name), " is not supported"));
  }
  LYNX_ASSIGN_OR_RETURN(std::string type, json.String("model_type"));
  for (const auto& known : kArchitectures) {
    if (type == known.model_type) return known.architecture;
  }
  return json.Error("model_type", absl::StrCat(Printable(type), " is not supported"));
}

absl::Status ReadHeads(const JsonObject& json, ModelConfig& config) {
  LYNX_ASSIGN_OR_RETURN(config.num_heads, json.Int("num_attention_heads", 1, kMaxNumHeads));
  constexpr char kKvHeads[] = "num_key_value_heads";
  const bool null_by_default = config.architecture == Architecture::kLlama;
  if (!json.Has(kKvHeads) && (null_by_default || json.json().contains(kKvHeads))) {
    config.num_kv_heads = config.num_heads;  // what null means to every architecture
  } else {
    LYNX_ASSIGN_OR_RETURN(config.num_kv_heads, json.Int(kKvHeads, 1, config.num_heads));
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    return json.Error("num_attention_heads",
                      absl::StrCat(config.num_heads, " is not a multiple of num_key_value_heads ",
                                   config.num_kv_heads));
  }
  if (json.Has("head_dim")) {
    LYNX_ASSIGN_OR_RETURN(config.head_dim, json.Int("head_dim", 2, kMaxHeadDim));
  } else if (config.architecture == Architecture::kQwen3) {
    config.head_dim = 128;  // Qwen3Config's default, whatever the hidden size
  } else if (config.hidden_size % config.num_heads != 0) {
    return json.Error("num_attention_heads",
                      absl::StrCat(config.num_heads, " does not divide hidden_size ",
                                   config.hidden_size, " and there is no head_dim"));
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    return json.Error("head_dim",
                      absl::StrCat(config.head_dim, " is not an even number up to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

// Qwen's windows start at layer max_window_layers; only models with one kind of layer are read.
absl::StatusOr<int> ReadQwenWindow(const JsonObject& json, int num_layers) {
  LYNX_ASSIGN_OR_RETURN(bool used, json.BoolOr("use_sliding_window", false));
  if (!used || !json.Has("sliding_window")) return 0;
  LYNX_ASSIGN_OR_RETURN(int64_t first, json.IntOr("max_window_layers", 28, 0, kMaxModelLen));
  if (first >= num_layers) return 0;
  if (first > 0) {
    return json.Error("max_window_layers",
                      absl::StrCat(first, " of ", num_layers,
                                   " layers without a window: mixed layers are not supported"));
  }
  return json.Int("sliding_window", 1, kMaxModelLen);
}

absl::StatusOr<int> ReadSlidingWindow(const JsonObject& json, const ModelConfig& config) {
  if (IsQwen(config.architecture)) return ReadQwenWindow(json, config.num_layers);
  if (config.architecture != Architecture::kMistral) return 0;
  if (json.json().contains("sliding_window") && !json.Has("sliding_window")) return 0;
  return json.IntOr("sliding_window", 4096, 1, kMaxModelLen);  // MistralConfig's default
}

// 0.1 m ln(scale) + 1, the attention temperature of the YaRN paper.
double YarnScale(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

absl::Status ReadYarn(const JsonObject& json, int64_t max_position, RopeConfig& rope) {
  LYNX_ASSIGN_OR_RETURN(rope.original_max_position, json.IntOr("original_max_position_embeddings",
                                                               max_position, 1, kMaxModelLen));
  LYNX_ASSIGN_OR_RETURN(rope.beta_fast, json.FloatOr("beta_fast", 32, 1e-3, 1e6));
  LYNX_ASSIGN_OR_RETURN(rope.beta_slow, json.FloatOr("beta_slow", 1, 1e-3, 1e6));
  LYNX_ASSIGN_OR_RETURN(bool truncate, json.BoolOr("truncate", true));
  if (!truncate) return json.Error("truncate", "false is not supported");
  LYNX_ASSIGN_OR_RETURN(double mscale, json.FloatOr("mscale", 0, 0, 1e3));
  LYNX_ASSIGN_OR_RETURN(double mscale_all_dim, json.FloatOr("mscale_all_dim", 0, 0, 1e3));
  const double scale = mscale != 0 && mscale_all_dim != 0
                           ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, mscale_all_dim)
                           : YarnScale(rope.factor, 1);
  LYNX_ASSIGN_OR_RETURN(rope.attention_factor, json.FloatOr("attention_factor", scale, 1e-3, 1e3));
  return absl::OkStatus();
}

absl::Status ReadLlama3(const JsonObject& json, RopeConfig& rope) {
  LYNX_ASSIGN_OR_RETURN(rope.low_freq_factor, json.Float("low_freq_factor", 1e-3, 1e6));
  LYNX_ASSIGN_OR_RETURN(rope.high_freq_factor, json.Float("high_freq_factor", 1e-3, 1e6));
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return json.Error("high_freq_factor", "is not above low_freq_factor");
  }
  LYNX_ASSIGN_OR_RETURN(rope.original_max_position,
                        json.Int("original_max_position_embeddings", 1, kMaxModelLen));
  return absl::OkStatus();
}

absl::Status ReadRopeScaling(const JsonObject& json, int64_t max_position, RopeConfig& rope) {
  LYNX_ASSIGN_OR_RETURN(std::string legacy_type, json.StringOr("type", "default"));
  LYNX_ASSIGN_OR_RETURN(std::string type, json.StringOr("rope_type", legacy_type));
  if (type == "default") return absl::OkStatus();
  if (type != "linear" && type != "yarn" && type != "llama3") {
    return json.Error("rope_type", absl::StrCat(Printable(type), " is not supported"));
  }
  LYNX_ASSIGN_OR_RETURN(rope.factor, json.Float("factor", 1, kMaxRopeFactor));
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  rope.scaling = type == "yarn" ? RopeScaling::kYarn : RopeScaling::kLlama3;
  return type == "yarn" ? ReadYarn(json, max_position, rope) : ReadLlama3(json, rope);
}

absl::Status ReadRope(const JsonObject& json, int64_t max_position, RopeConfig& rope) {
  const bool is_new = json.Has("rope_parameters");
  const std::string key = is_new ? "rope_parameters" : "rope_scaling";
  std::optional<JsonObject> scaling;
  if (json.Has(key)) {
    LYNX_ASSIGN_OR_RETURN(scaling, json.Object(key));
  }
  const JsonObject& theta_owner = is_new && scaling->Has("rope_theta") ? *scaling : json;
  LYNX_ASSIGN_OR_RETURN(rope.theta, theta_owner.FloatOr("rope_theta", 10000.0, 1, kMaxRopeTheta));
  const JsonObject* const places[] = {&json, scaling ? &*scaling : nullptr};
  for (const JsonObject* place : places) {
    if (place == nullptr) continue;
    LYNX_ASSIGN_OR_RETURN(double part, place->FloatOr("partial_rotary_factor", 1, 0, 1));
    if (part != 1) return place->Error("partial_rotary_factor", "other than 1 is not supported");
  }
  if (!scaling) return absl::OkStatus();
  return ReadRopeScaling(*scaling, max_position, rope);
}

absl::Status RefuseUnsupported(const JsonObject& json) {
  LYNX_ASSIGN_OR_RETURN(std::string activation, json.StringOr("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return json.Error("hidden_act", absl::StrCat(Printable(activation), " is not supported"));
  }
  if (json.Has("quantization_config")) {
    return json.Error("quantization_config", "quantized checkpoints are not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadBiases(const JsonObject& json, ModelDescription& description) {
  if (description.config.architecture == Architecture::kQwen2) {
    description.qkv_bias = Presence::kRequired;
    return absl::OkStatus();
  }
  LYNX_ASSIGN_OR_RETURN(bool attention, json.BoolOr("attention_bias", false));
  LYNX_ASSIGN_OR_RETURN(bool mlp, json.BoolOr("mlp_bias", false));
  if (attention) description.qkv_bias = description.output_bias = Presence::kRequired;
  if (mlp) description.mlp_bias = Presence::kRequired;
  return absl::OkStatus();
}

// A token id or a list of them.
absl::StatusOr<std::vector<TokenId>> ReadIds(const JsonObject& json, const std::string& key,
                                             int vocab_size) {
  const auto& value = json.json().at(key);
  std::vector<TokenId> ids;
  for (const auto& id : value.is_array() ? value : nlohmann::json::array({value})) {
    if (!id.is_number_integer()) return json.Error(key, "neither a token id nor a list of them");
    const auto number = id.get<int64_t>();
    if (number < 0 || number >= vocab_size) {
      return json.Error(key, absl::StrCat(number, " is not in 0..", vocab_size - 1));
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

// generation_config.json first: published chat models correct config.json there.
absl::Status ReadSpecialIds(const JsonObject& json, const std::string& directory,
                            ModelConfig& config) {
  std::vector<JsonObject> sources;
  const std::string generation = directory + "/generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    LYNX_ASSIGN_OR_RETURN(JsonObject source, JsonObject::Read(generation));
    sources.push_back(std::move(source));
  }
  sources.push_back(json);
  for (const JsonObject& source : sources) {
    if (config.eos_ids.empty() && source.Has("eos_token_id")) {
      LYNX_ASSIGN_OR_RETURN(config.eos_ids, ReadIds(source, "eos_token_id", config.vocab_size));
    }
    if (config.bos_id < 0 && source.Has("bos_token_id")) {
      LYNX_ASSIGN_OR_RETURN(auto ids, ReadIds(source, "bos_token_id", config.vocab_size));
      if (!ids.empty()) config.bos_id = ids[0];
    }
  }
  return absl::OkStatus();
}

}  // namespace

int MaxModelLen(int64_t max_position, const RopeConfig& rope) {
  if (rope.scaling != RopeScaling::kYarn) return static_cast<int>(max_position);
  const double stretched = rope.original_max_position * rope.factor;
  return static_cast<int>(
      std::min<double>(std::max<double>(max_position, stretched), kMaxModelLen));
}

absl::StatusOr<ModelDescription> ReadHfDescription(const std::string& directory) {
  LYNX_ASSIGN_OR_RETURN(JsonObject json, JsonObject::Read(directory + "/config.json"));
  ModelDescription description;
  ModelConfig& config = description.config;
  LYNX_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(json));
  config.name = std::filesystem::absolute(directory + "/config.json").parent_path().filename();
  LYNX_RETURN_IF_ERROR(RefuseUnsupported(json));
  LYNX_ASSIGN_OR_RETURN(config.num_layers, json.Int("num_hidden_layers", 1, kMaxNumLayers));
  LYNX_ASSIGN_OR_RETURN(config.hidden_size, json.Int("hidden_size", 1, kMaxHiddenSize));
  LYNX_ASSIGN_OR_RETURN(config.intermediate_size,
                        json.Int("intermediate_size", 1, kMaxIntermediateSize));
  LYNX_ASSIGN_OR_RETURN(config.vocab_size, json.Int("vocab_size", 1, kMaxVocabSize));
  LYNX_ASSIGN_OR_RETURN(config.rms_norm_eps, json.FloatOr("rms_norm_eps", 1e-6, 0, 1));
  LYNX_ASSIGN_OR_RETURN(config.tie_word_embeddings, json.BoolOr("tie_word_embeddings", false));
  LYNX_RETURN_IF_ERROR(ReadHeads(json, config));
  LYNX_ASSIGN_OR_RETURN(config.sliding_window, ReadSlidingWindow(json, config));
  LYNX_ASSIGN_OR_RETURN(int64_t max_position, json.Int("max_position_embeddings", 1, kMaxModelLen));
  LYNX_RETURN_IF_ERROR(ReadRope(json, max_position, config.rope));
  config.max_model_len = MaxModelLen(max_position, config.rope);
  LYNX_RETURN_IF_ERROR(ReadBiases(json, description));
  LYNX_RETURN_IF_ERROR(ReadSpecialIds(json, directory, config));
  return description;
}

}  // namespace lynx
