// SPDX-License-Identifier: Apache-2.0
// A model on disk, whichever format: its configuration and a read-only view of every tensor.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lynx/backend.h"
#include "lynx/model_config.h"
#include "lynx/status.h"

namespace lynx {

struct TensorInfo {
  std::string
      name;  // Hugging Face names ("model.layers.0.self_attn.q_proj.weight") for both formats
  WeightType type = WeightType::kF32;
  std::vector<int64_t> shape;  // outermost first: [n, k] or [n]
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;                // for messages
  std::string label;               // the file's own name of it, for messages: "blk.0.attn_q.weight"
  std::vector<int32_t> row_order;  // not empty: undoes llama GGUF's q/k permutation
};

// Mapped read-only; immutable; outlives every view into it.
class ModelFiles {
 public:
  // kInvalidArgument with one line "FILE: FIELD: reason" for anything malformed or unsupported.
  static absl::StatusOr<std::unique_ptr<ModelFiles>> Open(const std::string& path);
  virtual ~ModelFiles() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const TensorInfo* Find(const std::string& name) const = 0;  // null when absent
  virtual const std::vector<TensorInfo>& tensors() const = 0;         // in file order
  virtual std::string format() const = 0;                             // "GGUF", "safetensors"
};

}  // namespace lynx
