// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/model_hash.h"

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

// What is allocated by position goes by the length that is wanted, not by the model's claim.
ModelConfig ConfigOf(const ModelConfig& whole, const ShardSpec& shard, int max_model_len) {
  ModelConfig config = whole;
  if (max_model_len > 0) config.max_model_len = std::min(config.max_model_len, max_model_len);
  config.num_heads /= shard.size;
  config.num_kv_heads /= shard.size;
  config.intermediate_size /= shard.size;
  return config;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    std::shared_ptr<const ModelFiles> files, Backend& backend, const Options& options) {
  LYNX_CHECK(options.max_rows > 0);
  LYNX_ASSIGN_OR_RETURN(
      ModelWeights weights,
      LoadWeights(*files, backend, options.shard, options.progress, options.cache_directory));
  ModelConfig config = ConfigOf(files->config(), options.shard, options.max_model_len);
  LYNX_ASSIGN_OR_RETURN(
      auto rope, RopeTables::Create(backend, config.rope, config.head_dim, config.max_model_len));
  Activations activations(backend, config, options.max_rows);
  const char* missing = activations.memory == nullptr
                            ? "there is not enough memory"
                            : backend.Reserve(LimitsOf(config, options.max_rows));
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(config.name, ": steps of ", options.max_rows,
                                                      " rows on ", backend.name(), ": ", missing));
  }
  return std::unique_ptr<Transformer>(new Transformer(std::move(files), std::move(config),
                                                      std::move(weights), backend, options,
                                                      std::move(rope), std::move(activations)));
}

Transformer::Transformer(std::shared_ptr<const ModelFiles> files, ModelConfig config,
                         ModelWeights weights, Backend& backend, const Options& options,
                         std::unique_ptr<RopeTables> rope, Activations activations)
    : files_(std::move(files)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(backend),
      shard_(options.shard),
      collective_(options.collective),
      max_rows_(options.max_rows),
      hash_(HashModel(*files_)),
      rope_(std::move(rope)),
      activations_(std::move(activations)) {
  rope_->Covering(std::min(config_.max_model_len, kRopePositionsAtLoad));
}

void Transformer::CheckBatch(const ForwardBatch& batch, const KvPoolView& pool) const {
  const size_t rows = batch.tokens.size();
  LYNX_CHECK(rows > 0 && rows <= static_cast<size_t>(max_rows_));
  LYNX_CHECK(batch.positions.size() == rows);
  LYNX_CHECK(pool.layout == kv_layout());
  for (TokenId id : batch.tokens) LYNX_CHECK(id >= 0 && id < config_.vocab_size);
  for (int32_t row : batch.logit_rows) LYNX_CHECK(row >= 0 && static_cast<size_t>(row) < rows);
  LYNX_CHECK(batch.choices.empty() || (backend_.chooses_tokens() && collective_ == nullptr &&
                                       batch.choices.size() == batch.logit_rows.size()));
}

void Transformer::Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
                          const std::function<void(int layer)>& after_layer) {
  CheckBatch(batch, pool);
  const ModelConfig& c = config_;
  const Activations& a = activations_;
  const int rows = static_cast<int>(batch.tokens.size());
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;
  const int32_t* positions = batch.positions.data();
  const RopeTable rope = rope_->Covering(*std::ranges::max_element(batch.positions) + 1);
  const auto kv_written = [&](int layer) {
    if (!after_layer) return;
    backend_.KvWritten(layer);
    after_layer(layer);
  };

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
    if (collective_ == nullptr) kv_written(l);
    backend_.Attention({.q = a.q,
                        .out = a.attention,
                        .num_heads = c.num_heads,
                        .layer = l,
                        .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                        .sliding_window = c.sliding_window,
                        .pool = pool,
                        .groups = batch.groups});
    AddToResidual(w.o, a.attention, rows, q_size);
    if (collective_ != nullptr) kv_written(l);  // by all ranks: they have met in the sum

    backend_.RmsNorm(a.residual, w.post_attention_norm.data(), c.rms_norm_eps, rows, c.hidden_size,
                     a.hidden);
    const GemmOutput gate_up[] = {w.gate.To(a.gate), w.up.To(a.up)};
    backend_.Gemm(a.hidden, rows, c.hidden_size, gate_up);
    backend_.SiluMul(a.gate, a.up, int64_t{rows} * c.intermediate_size, a.gate);
    AddToResidual(w.down, a.gate, rows, c.intermediate_size);
  }
  if (!batch.logit_rows.empty()) ComputeLogits(batch, logits);
  backend_.EndForward();
}

// residual += linear · x. With ranks each has a partial product: rank 0 adds its own to the
// residual stream, the others put theirs in the stream's place, and the sum of all in rank order is
// the new stream, which has the old one in it once.
void Transformer::AddToResidual(const Linear& linear, const float* x, int rows, int64_t k) {
  const auto into = shard_.rank == 0 ? Linear::Into::kAccumulate : Linear::Into::kReplace;
  const GemmOutput output[] = {linear.To(activations_.residual, into)};
  backend_.Gemm(x, rows, k, output);
  if (collective_ == nullptr) return;
  LYNX_CHECK(collective_->AllReduceSum(activations_.residual, int64_t{rows} * config_.hidden_size));
}

void Transformer::ComputeLogits(const ForwardBatch& batch, float* logits) {
  const ModelConfig& c = config_;
  const Activations& a = activations_;
  const int rows = static_cast<int>(batch.logit_rows.size());
  backend_.GatherRows(a.residual, batch.logit_rows, c.hidden_size, a.hidden);
  backend_.RmsNorm(a.hidden, weights_.norm.data(), c.rms_norm_eps, rows, c.hidden_size, a.hidden);
  GemmOutput head = weights_.head.To(logits + weights_.head_begin);
  head.ldy = c.vocab_size;
  backend_.Logits(
      {.x = a.hidden, .rows = rows, .k = c.hidden_size, .head = head, .choices = batch.choices});
}

}  // namespace lynx
