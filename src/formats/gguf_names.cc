// SPDX-License-Identifier: Apache-2.0
#include "formats/gguf_names.h"

#include <array>
#include <cctype>
#include <optional>

namespace lynx {
namespace {

struct NamePair {
  const char* gguf;
  const char* hf;
};
// Without ".weight" or ".bias"; those of a layer also without "blk.N." or "model.layers.N.".
constexpr std::array<NamePair, 3> kGlobal = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};
constexpr std::array<NamePair, 11> kLayer = {{
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

constexpr const char* kGgufLayer = "blk.";
constexpr const char* kHfLayer = "model.layers.";

// One dialect's spelling and where to find the other's.
struct Direction {
  const char* NamePair::*from;
  const char* NamePair::*to;
  std::string from_layer;
  std::string to_layer;
};

template <size_t kSize>
std::optional<std::string> Look(const std::array<NamePair, kSize>& table, const Direction& d,
                                const std::string& stem) {
  for (const NamePair& pair : table) {
    if (stem == pair.*d.from) return pair.*d.to;
  }
  return std::nullopt;
}

std::string Translate(const std::string& name, const Direction& d) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return name;
  const std::string kind = name.substr(dot);  // ".weight" or ".bias"
  std::string stem = name.substr(0, dot);
  if (stem.rfind(d.from_layer, 0) != 0) {
    const auto found = Look(kGlobal, d, stem);
    return found ? *found + kind : name;
  }
  const size_t number = d.from_layer.size();
  size_t end = number;
  while (end < stem.size() && std::isdigit(static_cast<unsigned char>(stem[end]))) ++end;
  if (end == number || end >= stem.size() || stem[end] != '.') return name;
  const auto found = Look(kLayer, d, stem.substr(end + 1));
  if (!found) return name;
  return d.to_layer + stem.substr(number, end - number) + "." + *found + kind;
}

}  // namespace

std::string HfTensorName(const std::string& gguf_name) {
  return Translate(gguf_name, {&NamePair::gguf, &NamePair::hf, kGgufLayer, kHfLayer});
}

std::string GgufTensorName(const std::string& hf_name) {
  return Translate(hf_name, {&NamePair::hf, &NamePair::gguf, kHfLayer, kGgufLayer});
}

}  // namespace lynx
