// SPDX-License-Identifier: Apache-2.0
// The weights of a model, packed by a back-end and ready for the forward pass.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "formats/model_files.h"
#include "lynx/backend.h"
#include "lynx/status.h"
#include "model/model.h"

namespace lynx {

// float32 in the back-end's memory, or nothing.
struct Vector {
  Buffer memory;
  const float* data() const { return reinterpret_cast<const float*>(memory.get()); }
  bool empty() const { return memory == nullptr; }
};

struct Linear {
  std::unique_ptr<Weight> weight;  // [n, k]
  Vector bias;                     // [n] or empty

  // y = this · x, [rows, n]; kAccumulate adds to y instead.
  enum class Into { kReplace, kAccumulate };
  GemmOutput To(float* y, Into into = Into::kReplace) const;
};

struct LayerWeights {
  Vector input_norm;  // [hidden_size]
  Linear q, k, v, o;
  Vector q_norm, k_norm;  // [head_dim], Qwen3 only
  Vector post_attention_norm;
  Linear gate, up, down;
};

struct ModelWeights {
  std::unique_ptr<Weight> embedding;  // [vocab_size, hidden_size]; may read the mapped file
  std::vector<LayerWeights> layers;
  Vector norm;  // [hidden_size]
  Linear head;  // [vocab_size, hidden_size]; packed from the embedding when tied
};

// Checks every tensor for NaN and infinity and packs it. `files` outlives the result.
// kResourceExhausted when the back-end's memory does not hold it.
absl::StatusOr<ModelWeights> LoadWeights(const ModelFiles& files, Backend& backend,
                                         const std::function<void(const LoadProgress&)>& progress);

// Bytes of matrices that one decode step reads.
size_t DecodeBytes(const ModelWeights& weights);

}  // namespace lynx
