// SPDX-License-Identifier: Apache-2.0
#include "formats/expected_tensors.h"

#include "absl/strings/str_join.h"
#include "formats/file_error.h"
#include "formats/weight_type.h"

namespace lynx {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

class Checker {
 public:
  explicit Checker(const TensorCheck& check) : check_(check), config_(check.description.config) {}

  absl::Status CheckAll() const {
    LYNX_RETURN_IF_ERROR(Check("model.embed_tokens.weight",
                               {config_.vocab_size, config_.hidden_size}, Presence::kRequired,
                               absl::StrCat("vocab_size ", config_.vocab_size)));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      LYNX_RETURN_IF_ERROR(CheckLayer(absl::StrCat("model.layers.", layer, ".")));
    }
    LYNX_RETURN_IF_ERROR(Check("model.norm.weight", {config_.hidden_size}, Presence::kRequired));
    if (config_.tie_word_embeddings) return absl::OkStatus();
    return Check("lm_head.weight", {config_.vocab_size, config_.hidden_size}, Presence::kRequired,
                 "tie_word_embeddings false");
  }

 private:
  absl::Status CheckLayer(const std::string& prefix) const {
    const ModelDescription& d = check_.description;
    const int64_t hidden = config_.hidden_size;
    const int64_t q = int64_t{config_.num_heads} * config_.head_dim;
    const int64_t kv = int64_t{config_.num_kv_heads} * config_.head_dim;
    const Presence norm =
        config_.architecture == Architecture::kQwen3 ? Presence::kRequired : Presence::kForbidden;
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    LYNX_RETURN_IF_ERROR(Check(prefix + "input_layernorm.weight", {hidden}, Presence::kRequired));
    LYNX_RETURN_IF_ERROR(CheckLinear(attention + "q_proj", q, hidden, d.qkv_bias));
    LYNX_RETURN_IF_ERROR(CheckLinear(attention + "k_proj", kv, hidden, d.qkv_bias));
    LYNX_RETURN_IF_ERROR(CheckLinear(attention + "v_proj", kv, hidden, d.qkv_bias));
    LYNX_RETURN_IF_ERROR(CheckLinear(attention + "o_proj", hidden, q, d.output_bias));
    LYNX_RETURN_IF_ERROR(Check(attention + "q_norm.weight", {config_.head_dim}, norm));
    LYNX_RETURN_IF_ERROR(Check(attention + "k_norm.weight", {config_.head_dim}, norm));
    LYNX_RETURN_IF_ERROR(
        Check(prefix + "post_attention_layernorm.weight", {hidden}, Presence::kRequired));
    const int64_t inner = config_.intermediate_size;
    LYNX_RETURN_IF_ERROR(CheckLinear(mlp + "gate_proj", inner, hidden, d.mlp_bias));
    LYNX_RETURN_IF_ERROR(CheckLinear(mlp + "up_proj", inner, hidden, d.mlp_bias));
    return CheckLinear(mlp + "down_proj", hidden, inner, d.mlp_bias);
  }

  absl::Status CheckLinear(const std::string& name, int64_t n, int64_t k, Presence bias) const {
    LYNX_RETURN_IF_ERROR(Check(name + ".weight", {n, k}, Presence::kRequired));
    return Check(name + ".bias", {n}, bias);
  }

  absl::Status Check(const std::string& name, const std::vector<int64_t>& shape, Presence presence,
                     const std::string& reason = "") const {
    const TensorInfo* tensor = check_.find(name);
    const std::string label = "tensor " + check_.label(name);
    const std::string by =
        absl::StrCat(" (", check_.config_file, ": ",
                     reason.empty() ? absl::StrCat(config_.num_layers, " layers") : reason, ")");
    if (tensor == nullptr) {
      if (presence != Presence::kRequired) return absl::OkStatus();
      return FileError(check_.file, label, absl::StrCat("missing", by));
    }
    if (presence == Presence::kForbidden) {
      return FileError(tensor->file, label,
                       absl::StrCat("present, but the configuration in ", check_.config_file,
                                    " has no such tensor"));
    }
    if (tensor->shape != shape) {
      return FileError(
          tensor->file, label,
          absl::StrCat("shape ", ShapeText(tensor->shape), ", want ", ShapeText(shape), by));
    }
    if (shape.size() == 1 && WeightBlock(tensor->type).elements != 1) {
      return FileError(
          tensor->file, label,
          absl::StrCat("type ", WeightTypeName(tensor->type), " is not supported for a vector"));
    }
    return absl::OkStatus();
  }

  const TensorCheck& check_;
  const ModelConfig& config_;
};

}  // namespace

absl::Status CheckTensors(const TensorCheck& check) { return Checker(check).CheckAll(); }

}  // namespace lynx
