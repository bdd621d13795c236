// SPDX-License-Identifier: Apache-2.0
#include "model/activations.h"

#include <array>
#include <utility>

namespace lynx {

Activations::Activations(Backend& backend, const ModelConfig& config, int max_rows) {
  constexpr size_t kFloats = 64 / sizeof(float);
  const size_t hidden_size = config.hidden_size;
  const size_t q_size = size_t(config.num_heads) * config.head_dim;
  const size_t kv_size = size_t(config.num_kv_heads) * config.head_dim;
  const size_t inner_size = config.intermediate_size;
  const std::array<std::pair<float**, size_t>, 8> buffers = {{{&residual, hidden_size},
                                                              {&hidden, hidden_size},
                                                              {&q, q_size},
                                                              {&k, kv_size},
                                                              {&v, kv_size},
                                                              {&attention, q_size},
                                                              {&gate, inner_size},
                                                              {&up, inner_size}}};
  const auto padded = [max_rows](size_t width) {
    return (width * max_rows + kFloats - 1) / kFloats * kFloats;
  };
  size_t total = 0;
  for (const auto& [pointer, width] : buffers) total += padded(width);
  memory = backend.Allocate(total * sizeof(float));
  auto* next = reinterpret_cast<float*>(memory.get());
  for (const auto& [pointer, width] : buffers) {
    *pointer = next;
    if (next != nullptr) next += padded(width);
  }
}

}  // namespace lynx
