// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer: weights and the one forward pass that every row goes through.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lynx/backend.h"
#include "lynx/model_config.h"
#include "lynx/status.h"

namespace lynx {

struct LoadProgress {
  int64_t bytes_done = 0, bytes_total = 0;
};

class Model {
 public:
  // path: a GGUF file or a Hugging Face directory. The back-end outlives the model.
  // max_rows: the largest batch Forward will see (activation buffers are allocated once).
  // max_model_len: the longest sequence, if it is shorter than the model's own; 0: the model's.
  // cache_directory: of packed weights (weights.h); "": none.
  static absl::StatusOr<std::unique_ptr<Model>> Load(
      const std::string& path, Backend& backend, int max_rows,
      std::function<void(const LoadProgress&)> progress = nullptr, int max_model_len = 0,
      const std::string& cache_directory = "");
  virtual ~Model() = default;

  virtual Backend& backend() const = 0;  // with several: rank 0's
  // One per rank; each holds its part of the KV pool (KvPoolView::shards).
  virtual std::vector<Backend*> backends() const { return {&backend()}; }
  // ForwardBatch::choices may be used.
  virtual bool chooses_tokens() const { return backend().chooses_tokens(); }
  virtual const ModelConfig& config() const = 0;
  virtual KvLayout kv_layout() const = 0;   // dtype follows the back-end's compute
  virtual uint64_t hash() const = 0;        // of config and weights, for the handshake
  virtual size_t weight_bytes() const = 0;  // read by one decode step

  // Writes K and V of every row into the pool and the logits of logit_rows into
  // logits[logit_rows.size(), vocab_size], host memory; a row whose choice is wanted gets that
  // instead. after_layer(l) is called when layer l has written all its KV, or will have before the
  // back-end does anything else with it.
  virtual void Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
                       const std::function<void(int layer)>& after_layer = nullptr) = 0;
};

}  // namespace lynx
