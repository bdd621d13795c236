// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "lynx/model_config.h"

namespace lynx {

// The buffers of one forward pass, allocated once for the largest batch. All float32, 64-byte
// aligned.
class Activations {
 public:
  Activations(const ModelConfig& config, int max_rows);

  float* residual;   // [max_rows, hidden_size], the residual stream
  float* hidden;     // [max_rows, hidden_size], its norm: the input of a block
  float* q;          // [max_rows, num_heads * head_dim]
  float* k;          // [max_rows, num_kv_heads * head_dim]
  float* v;          // [max_rows, num_kv_heads * head_dim]
  float* attention;  // [max_rows, num_heads * head_dim]
  float* gate;       // [max_rows, intermediate_size]
  float* up;         // [max_rows, intermediate_size]

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<float[], Free> memory_;
};

}  // namespace lynx
