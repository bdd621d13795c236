// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lynx/backend.h"
#include "lynx/model_config.h"

namespace lynx {

// The buffers of one forward pass in the back-end's memory, for the largest batch. All float32,
// 64-byte aligned; all null when there is not enough memory.
struct Activations {
  Activations(Backend& backend, const ModelConfig& config, int max_rows);

  Buffer memory;
  float* residual;   // [max_rows, hidden_size], the residual stream
  float* hidden;     // [max_rows, hidden_size], its norm: the input of a block
  float* q;          // [max_rows, num_heads * head_dim]
  float* k;          // [max_rows, num_kv_heads * head_dim]
  float* v;          // [max_rows, num_kv_heads * head_dim]
  float* attention;  // [max_rows, num_heads * head_dim]
  float* gate;       // [max_rows, intermediate_size]
  float* up;         // [max_rows, intermediate_size]
};

}  // namespace lynx
