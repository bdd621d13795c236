// SPDX-License-Identifier: Apache-2.0
// The one forward pass, of a whole model or of one rank's part of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "formats/model_files.h"
#include "lynx/backend.h"
#include "lynx/collective.h"
#include "model/activations.h"
#include "model/model.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace lynx {

// A rank holds an equal run of the attention heads with their KV heads and of the MLP's inner
// channels, a run of the vocabulary of the head, and everything else whole. Its config() and
// kv_layout() are those of its part; its Forward wants its part of the pool and writes its columns
// of logits[rows, vocab_size of the model], and calls the collective twice a layer.
class Transformer final : public Model {
 public:
  struct Options {
    ShardSpec shard;
    Collective* collective = nullptr;  // of the shard's rank; null when the model is whole
    int max_rows = 0;
    int max_model_len = 0;  // 0: the model's
    std::function<void(const LoadProgress&)> progress;
    std::string cache_directory;  // of packed weights; "": none
  };
  // Back-end and collective outlive the model. The shard fits the model (CheckShards).
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(
      std::shared_ptr<const ModelFiles> files, Backend& backend, const Options& options);

  Backend& backend() const override { return backend_; }
  const ModelConfig& config() const override { return config_; }
  KvLayout kv_layout() const override {
    return {.num_layers = config_.num_layers,
            .num_kv_heads = config_.num_kv_heads,
            .head_dim = config_.head_dim,
            .dtype = backend_.compute() == Compute::kF32 ? KvDtype::kF32 : KvDtype::kBf16};
  }
  uint64_t hash() const override { return hash_; }
  size_t weight_bytes() const override { return DecodeBytes(weights_); }

  void Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
               const std::function<void(int layer)>& after_layer) override;

 private:
  Transformer(std::shared_ptr<const ModelFiles> files, ModelConfig config, ModelWeights weights,
              Backend& backend, const Options& options, std::unique_ptr<RopeTables> rope,
              Activations activations);

  void CheckBatch(const ForwardBatch& batch, const KvPoolView& pool) const;
  void AddToResidual(const Linear& linear, const float* x, int rows, int64_t k);
  void ComputeLogits(const ForwardBatch& batch, float* logits);

  // Mapped: weights may be read from it. Shared by the ranks of a model.
  const std::shared_ptr<const ModelFiles> files_;
  const ModelConfig config_;
  const ModelWeights weights_;
  Backend& backend_;
  const ShardSpec shard_;
  Collective* const collective_;
  const int max_rows_;
  const uint64_t hash_;
  const std::unique_ptr<RopeTables> rope_;
  const Activations activations_;
};

}  // namespace lynx
