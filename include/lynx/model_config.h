// SPDX-License-Identifier: Apache-2.0
// What a model is: the numbers of config.json or of a GGUF header, in one set of names.
#pragma once

#include <string>
#include <vector>

#include "lynx/types.h"

namespace lynx {

enum class Architecture { kLlama, kMistral, kQwen2, kQwen3 };
enum class RopeScaling { kNone, kLinear, kYarn, kLlama3 };

// Rotary embedding, half-split order (Hugging Face). Formulas: transformers' modeling_rope_utils.
struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int original_max_position = 0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  double attention_factor = 0.0;                         // yarn; 0 = 0.1 ln(factor) + 1
  std::vector<float> freq_divisors;  // GGUF rope_freqs.weight, [head_dim / 2], or empty
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string name;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_model_len = 0;
  float rms_norm_eps = 1e-5f;
  int sliding_window = 0;  // 0 = none; n: position q sees k when 0 <= q - k < n
  bool tie_word_embeddings = false;
  RopeConfig rope;
  std::vector<TokenId> eos_ids;
  TokenId bos_id = -1;
};

}  // namespace lynx
