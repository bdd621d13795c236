// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "formats/decode_vector.h"
#include "formats/file_error.h"
#include "formats/limits.h"
#include "formats/model_description.h"

namespace lynx {
namespace {

const GgufTensor* FindTensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// The metadata of one model: keys are prefixed with its architecture.
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string Key(const char* key) const { return prefix_ + "." + key; }
  bool Has(const char* key) const { return file_.Find(Key(key)) != nullptr; }
  absl::StatusOr<int64_t> Int(const char* key, int64_t min, int64_t max) const {
    return file_.Int(Key(key), min, max);
  }
  absl::StatusOr<int64_t> IntOr(const char* key, int64_t absent, int64_t min, int64_t max) const {
    if (!Has(key)) return absent;
    return Int(key, min, max);
  }
  absl::StatusOr<double> FloatOr(const char* key, double absent, double min, double max) const {
    if (!Has(key)) return absent;
    LYNX_ASSIGN_OR_RETURN(double value, file_.Float(Key(key)));
    if (!(value >= min && value <= max)) {
      return Error(key, absl::StrCat(value, " is not in ", min, "..", max));
    }
    return value;
  }
  absl::StatusOr<std::string> StringOr(const char* key, const char* absent) const {
    if (!Has(key)) return std::string(absent);
    return file_.String(Key(key));
  }
  absl::Status Error(const char* key, std::string_view reason) const {
    return FileError(file_.path(), Key(key), reason);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

absl::StatusOr<Architecture> ReadArchitecture(const GgufFile& file, const std::string& name) {
  if (name == "llama") return Architecture::kLlama;  // also Mistral's
  if (name == "qwen2") return Architecture::kQwen2;
  if (name == "qwen3") return Architecture::kQwen3;
  return FileError(file.path(), "general.architecture",
                   absl::StrCat(Printable(name), " is not supported"));
}

absl::Status ReadHeads(const Metadata& metadata, ModelConfig& config) {
  LYNX_ASSIGN_OR_RETURN(config.num_heads, metadata.Int("attention.head_count", 1, kMaxNumHeads));
  LYNX_ASSIGN_OR_RETURN(config.num_kv_heads, metadata.IntOr("attention.head_count_kv",
                                                            config.num_heads, 1, config.num_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return metadata.Error(
        "attention.head_count_kv",
        absl::StrCat(config.num_kv_heads, " does not divide head_count ", config.num_heads));
  }
  const bool has_key_length = metadata.Has("attention.key_length");
  if (!has_key_length && config.hidden_size % config.num_heads != 0) {
    return metadata.Error("attention.head_count",
                          absl::StrCat(config.num_heads, " does not divide embedding_length ",
                                       config.hidden_size, " and there is no key_length"));
  }
  const int64_t derived = config.hidden_size / config.num_heads;
  LYNX_ASSIGN_OR_RETURN(config.head_dim,
                        metadata.IntOr("attention.key_length", derived, 2, kMaxHeadDim));
  if (config.head_dim % 2 != 0 || config.head_dim < 2 || config.head_dim > kMaxHeadDim) {
    return metadata.Error(
        "attention.key_length",
        absl::StrCat(config.head_dim, " is not an even number in 2..", kMaxHeadDim));
  }
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    LYNX_ASSIGN_OR_RETURN(int64_t other, metadata.IntOr(key, config.head_dim, 1, kMaxHeadDim));
    if (other != config.head_dim) {
      return metadata.Error(key, absl::StrCat(other, " differs from the head dimension ",
                                              config.head_dim, ", which is not supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadYarn(const Metadata& metadata, int64_t context, RopeConfig& rope) {
  LYNX_ASSIGN_OR_RETURN(
      rope.original_max_position,
      metadata.IntOr("rope.scaling.original_context_length", context, 1, kMaxModelLen));
  LYNX_ASSIGN_OR_RETURN(rope.beta_fast,
                        metadata.FloatOr("rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6));
  LYNX_ASSIGN_OR_RETURN(rope.beta_slow,
                        metadata.FloatOr("rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6));
  // ggml multiplies this factor with YaRN's own; Hugging Face replaces it.
  LYNX_ASSIGN_OR_RETURN(double factor, metadata.FloatOr("rope.scaling.attn_factor", 1, 1e-3, 1e3));
  rope.attention_factor = factor * (0.1 * std::log(rope.factor) + 1.0);
  return absl::OkStatus();
}

absl::Status ReadRopeFreqs(const GgufFile& file, int head_dim, RopeConfig& rope) {
  const GgufTensor* tensor = FindTensor(file, "rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  const std::string label = "tensor rope_freqs.weight";
  if (tensor->type != WeightType::kF32 || tensor->shape != std::vector<int64_t>{head_dim / 2}) {
    return FileError(tensor->file, label,
                     absl::StrCat("want ", head_dim / 2, " numbers of type F32"));
  }
  rope.freq_divisors = DecodeFloats(tensor->type, tensor->data, head_dim / 2);
  for (float divisor : rope.freq_divisors) {
    if (!(divisor > 0) || !std::isfinite(divisor)) {
      return FileError(tensor->file, label, "a divisor is not positive and finite");
    }
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const Metadata& metadata, int64_t context, RopeConfig& rope) {
  LYNX_ASSIGN_OR_RETURN(rope.theta, metadata.FloatOr("rope.freq_base", 10000.0, 1, kMaxRopeTheta));
  const bool has_old_key = metadata.Has("rope.scale_linear");
  LYNX_ASSIGN_OR_RETURN(std::string type,
                        metadata.StringOr("rope.scaling.type", has_old_key ? "linear" : "none"));
  if (type == "none") return absl::OkStatus();
  if (type != "linear" && type != "yarn") {
    return metadata.Error("rope.scaling.type", absl::StrCat(Printable(type), " is not supported"));
  }
  const char* factor_key = metadata.Has("rope.scaling.factor") || !has_old_key
                               ? "rope.scaling.factor"
                               : "rope.scale_linear";
  LYNX_ASSIGN_OR_RETURN(rope.factor, metadata.FloatOr(factor_key, 1, 1, kMaxRopeFactor));
  rope.scaling = type == "yarn" ? RopeScaling::kYarn : RopeScaling::kLinear;
  return type == "yarn" ? ReadYarn(metadata, context, rope) : absl::OkStatus();
}

void AddEndId(TokenId id, ModelConfig& config) {
  if (std::ranges::find(config.eos_ids, id) == config.eos_ids.end()) config.eos_ids.push_back(id);
}

// A file names one end of sequence where the checkpoint has several (generation_config.json), and
// older ones name the wrong one, so that the tokens that end an answer in these families are found
// by their text, as llama.cpp does. A normal token is text, whatever it looks like.
absl::Status AddEndTexts(const GgufFile& file, const std::vector<std::string>& tokens,
                         ModelConfig& config) {
  constexpr std::string_view kEndTexts[] = {"<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>",
                                            "<|endoftext|>", "<|im_end|>", "</s>"};
  constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
  constexpr int64_t kControl = 3, kUserDefined = 4;
  if (file.Find(kTypesKey) == nullptr) return absl::OkStatus();
  LYNX_ASSIGN_OR_RETURN(const auto* types, file.Ints(kTypesKey));
  for (size_t i = 0; i < std::min(tokens.size(), types->size()); ++i) {
    if ((*types)[i] != kControl && (*types)[i] != kUserDefined) continue;
    if (std::ranges::find(kEndTexts, tokens[i]) == std::end(kEndTexts)) continue;
    AddEndId(static_cast<TokenId>(i), config);
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, const Metadata& metadata, ModelConfig& config) {
  LYNX_ASSIGN_OR_RETURN(const auto* tokens, file.Strings("tokenizer.ggml.tokens"));
  const auto num_tokens = static_cast<int64_t>(tokens->size());
  LYNX_ASSIGN_OR_RETURN(config.vocab_size,
                        metadata.IntOr("vocab_size", num_tokens, 1, kMaxVocabSize));
  if (num_tokens == 0 || num_tokens > config.vocab_size) {
    return FileError(file.path(), "tokenizer.ggml.tokens",
                     absl::StrCat(num_tokens, " tokens, vocab_size is ", config.vocab_size));
  }
  // End of sequence, of turn and of message.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (file.Find(key) == nullptr) continue;
    LYNX_ASSIGN_OR_RETURN(TokenId id, file.Int(key, 0, config.vocab_size - 1));
    AddEndId(id, config);
  }
  LYNX_RETURN_IF_ERROR(AddEndTexts(file, *tokens, config));
  if (file.Find("tokenizer.ggml.bos_token_id") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(config.bos_id,
                          file.Int("tokenizer.ggml.bos_token_id", 0, config.vocab_size - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelDescription> ReadGgufDescription(const GgufFile& file) {
  LYNX_ASSIGN_OR_RETURN(std::string prefix, file.String("general.architecture"));
  ModelDescription description;
  ModelConfig& config = description.config;
  LYNX_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(file, prefix));
  const Metadata metadata(file, prefix);
  LYNX_ASSIGN_OR_RETURN(int64_t num_experts, metadata.IntOr("expert_count", 0, 0, kMaxNumHeads));
  if (num_experts > 0) {
    return metadata.Error("expert_count", absl::StrCat(num_experts, ": is not supported"));
  }
  config.name = std::filesystem::path(file.path()).stem();
  if (file.Find("general.name") != nullptr) {
    LYNX_ASSIGN_OR_RETURN(config.name, file.String("general.name"));
  }
  LYNX_ASSIGN_OR_RETURN(config.num_layers, metadata.Int("block_count", 1, kMaxNumLayers));
  LYNX_ASSIGN_OR_RETURN(config.hidden_size, metadata.Int("embedding_length", 1, kMaxHiddenSize));
  LYNX_ASSIGN_OR_RETURN(config.intermediate_size,
                        metadata.Int("feed_forward_length", 1, kMaxIntermediateSize));
  LYNX_ASSIGN_OR_RETURN(config.rms_norm_eps,
                        metadata.FloatOr("attention.layer_norm_rms_epsilon", 1e-6, 0, 1));
  LYNX_RETURN_IF_ERROR(ReadHeads(metadata, config));
  LYNX_RETURN_IF_ERROR(ReadVocabulary(file, metadata, config));
  LYNX_ASSIGN_OR_RETURN(int64_t context, metadata.Int("context_length", 1, kMaxModelLen));
  LYNX_RETURN_IF_ERROR(ReadRope(metadata, context, config.rope));
  LYNX_RETURN_IF_ERROR(ReadRopeFreqs(file, config.head_dim, config.rope));
  config.max_model_len = MaxModelLen(context, config.rope);
  if (config.architecture == Architecture::kLlama) {
    LYNX_ASSIGN_OR_RETURN(config.sliding_window,
                          metadata.IntOr("attention.sliding_window", 0, 0, kMaxModelLen));
  }
  config.tie_word_embeddings = FindTensor(file, "output.weight") == nullptr;
  description.qkv_bias =
      config.architecture == Architecture::kQwen2 ? Presence::kRequired : Presence::kOptional;
  description.output_bias = description.mlp_bias = Presence::kOptional;
  return description;
}

}  // namespace lynx
