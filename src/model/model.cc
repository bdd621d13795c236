// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/model_files.h"
#include "model/activations.h"
#include "model/model_hash.h"
#include "model/rope_table.h"
#include "model/weights.h"

namespace lynx {
namespace {

// Longer contexts compute the rest of their RoPE table when a sequence first gets there.
constexpr int kRopePositionsAtLoad = 32768;

StepLimits LimitsOf(const ModelConfig& config, int max_rows) {
  return {.max_rows = max_rows,
          .max_position = config.max_model_len,
          .num_layers = config.num_layers,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .vocab_size = config.vocab_size,
          .sliding_window = config.sliding_window};
}

class Transformer final : public Model {
 public:
  Transformer(std::unique_ptr<ModelFiles> files, ModelWeights weights, Backend& backend,
              int max_rows, std::unique_ptr<RopeTables> rope, Activations activations)
      : files_(std::move(files)),
        weights_(std::move(weights)),
        backend_(backend),
        max_rows_(max_rows),
        hash_(HashModel(*files_)),
        rope_(std::move(rope)),
        activations_(std::move(activations)) {
    rope_->Covering(std::min(config().max_model_len, kRopePositionsAtLoad));
  }

  Backend& backend() const override { return backend_; }
  const ModelConfig& config() const override { return files_->config(); }
  KvLayout kv_layout() const override {
    return {.num_layers = config().num_layers,
            .num_kv_heads = config().num_kv_heads,
            .head_dim = config().head_dim,
            .dtype = backend_.compute() == Compute::kF32 ? KvDtype::kF32 : KvDtype::kBf16};
  }
  uint64_t hash() const override { return hash_; }
  size_t weight_bytes() const override { return DecodeBytes(weights_); }

  void Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
               const std::function<void(int layer)>& after_layer) override;

 private:
  void CheckBatch(const ForwardBatch& batch, const KvPoolView& pool) const;
  void ComputeLogits(const ForwardBatch& batch, float* logits);

  const std::unique_ptr<ModelFiles> files_;  // mapped: weights may be read from it
  const ModelWeights weights_;
  Backend& backend_;
  const int max_rows_;
  const uint64_t hash_;
  const std::unique_ptr<RopeTables> rope_;
  const Activations activations_;
};

void Transformer::CheckBatch(const ForwardBatch& batch, const KvPoolView& pool) const {
  const size_t rows = batch.tokens.size();
  LYNX_CHECK(rows > 0 && rows <= static_cast<size_t>(max_rows_));
  LYNX_CHECK(batch.positions.size() == rows);
  LYNX_CHECK(pool.layout == kv_layout());
  for (TokenId id : batch.tokens) LYNX_CHECK(id >= 0 && id < config().vocab_size);
  for (int32_t row : batch.logit_rows) LYNX_CHECK(row >= 0 && static_cast<size_t>(row) < rows);
  LYNX_CHECK(batch.choices.empty() ||
             (backend_.chooses_tokens() && batch.choices.size() == batch.logit_rows.size()));
}

void Transformer::Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
                          const std::function<void(int layer)>& after_layer) {
  CheckBatch(batch, pool);
  const ModelConfig& c = config();
  const Activations& a = activations_;
  const int rows = static_cast<int>(batch.tokens.size());
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;
  const int32_t* positions = batch.positions.data();
  const RopeTable rope = rope_->Covering(*std::ranges::max_element(batch.positions) + 1);

  backend_.BeginForward(batch);
  backend_.Embed(*weights_.embedding, batch.tokens, a.residual);
  for (int l = 0; l < c.num_layers; ++l) {
    const LayerWeights& w = weights_.layers[l];

    backend_.RmsNorm(a.residual, w.input_norm.data(), c.rms_norm_eps, rows, c.hidden_size,
                     a.hidden);
    const GemmOutput qkv[] = {w.q.To(a.q), w.k.To(a.k), w.v.To(a.v)};
    backend_.Gemm(a.hidden, rows, c.hidden_size, qkv);
    if (!w.q_norm.empty()) {
      backend_.RmsNorm(a.q, w.q_norm.data(), c.rms_norm_eps, int64_t{rows} * c.num_heads,
                       c.head_dim, a.q);
      backend_.RmsNorm(a.k, w.k_norm.data(), c.rms_norm_eps, int64_t{rows} * c.num_kv_heads,
                       c.head_dim, a.k);
    }
    backend_.Rope(a.q, rows, c.num_heads, c.head_dim, positions, rope);
    backend_.Rope(a.k, rows, c.num_kv_heads, c.head_dim, positions, rope);
    backend_.KvWrite({.k = a.k, .v = a.v, .layer = l, .pool = pool, .groups = batch.groups});
    if (after_layer) {
      backend_.KvWritten(l);
      after_layer(l);
    }
    backend_.Attention({.q = a.q,
                        .out = a.attention,
                        .num_heads = c.num_heads,
                        .layer = l,
                        .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                        .sliding_window = c.sliding_window,
                        .pool = pool,
                        .groups = batch.groups});
    const GemmOutput o[] = {w.o.To(a.residual, Linear::Into::kAccumulate)};
    backend_.Gemm(a.attention, rows, q_size, o);

    backend_.RmsNorm(a.residual, w.post_attention_norm.data(), c.rms_norm_eps, rows, c.hidden_size,
                     a.hidden);
    const GemmOutput gate_up[] = {w.gate.To(a.gate), w.up.To(a.up)};
    backend_.Gemm(a.hidden, rows, c.hidden_size, gate_up);
    backend_.SiluMul(a.gate, a.up, int64_t{rows} * c.intermediate_size, a.gate);
    const GemmOutput down[] = {w.down.To(a.residual, Linear::Into::kAccumulate)};
    backend_.Gemm(a.gate, rows, c.intermediate_size, down);
  }
  if (!batch.logit_rows.empty()) ComputeLogits(batch, logits);
  backend_.EndForward();
}

void Transformer::ComputeLogits(const ForwardBatch& batch, float* logits) {
  const ModelConfig& c = config();
  const Activations& a = activations_;
  const int rows = static_cast<int>(batch.logit_rows.size());
  backend_.GatherRows(a.residual, batch.logit_rows, c.hidden_size, a.hidden);
  backend_.RmsNorm(a.hidden, weights_.norm.data(), c.rms_norm_eps, rows, c.hidden_size, a.hidden);
  backend_.Logits({.x = a.hidden,
                   .rows = rows,
                   .k = c.hidden_size,
                   .head = weights_.head.To(logits),
                   .choices = batch.choices});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Load(
    const std::string& path, Backend& backend, int max_rows,
    std::function<void(const LoadProgress&)> progress) {
  LYNX_CHECK(max_rows > 0);
  LYNX_ASSIGN_OR_RETURN(std::unique_ptr<ModelFiles> files, ModelFiles::Open(path));
  LYNX_ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(*files, backend, progress));
  const ModelConfig& config = files->config();
  LYNX_ASSIGN_OR_RETURN(
      auto rope, RopeTables::Create(backend, config.rope, config.head_dim, config.max_model_len));
  Activations activations(backend, config, max_rows);
  const char* missing = activations.memory == nullptr ? "there is not enough memory"
                                                      : backend.Reserve(LimitsOf(config, max_rows));
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": steps of ", max_rows, " rows on ", backend.name(), ": ", missing));
  }
  return std::make_unique<Transformer>(std::move(files), std::move(weights), backend, max_rows,
                                       std::move(rope), std::move(activations));
}

}  // namespace lynx
