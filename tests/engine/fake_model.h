// SPDX-License-Identifier: Apache-2.0
// A small deterministic model for engine tests. Every logit depends, smoothly, on the KV that lies
// in the pool for all positions up to the row's own, in both layers: a wrong or stale block changes
// the text, and slightly inexact KV gives drafts that are usually, but not always, right.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"

namespace lynx {

class FakeModel final : public Model {
 public:
  static constexpr int kLayers = 2;
  static constexpr int kDim = 16;
  static constexpr int kVocab = 211;
  static constexpr TokenId kEos = 7;

  explicit FakeModel(int max_model_len = 2048) {
    config_.name = "fake";
    config_.num_layers = kLayers;
    config_.num_kv_heads = 1;
    config_.head_dim = kDim;
    config_.vocab_size = kVocab;
    config_.max_model_len = max_model_len;
    config_.eos_ids = {kEos};
  }

  Backend& backend() const override { return *backend_; }
  const ModelConfig& config() const override { return config_; }
  KvLayout kv_layout() const override {
    return {.num_layers = kLayers, .num_kv_heads = 1, .head_dim = kDim};
  }
  uint64_t hash() const override { return 42; }
  size_t weight_bytes() const override { return 0; }

  int num_forwards = 0;
  int64_t num_rows = 0;
  int max_rows = 0;
  std::function<void(const ForwardBatch&)> on_forward;  // before each

  void Forward(const ForwardBatch& batch, const KvPoolView& pool, float* logits,
               const std::function<void(int layer)>& after_layer) override {
    ++num_forwards;
    if (on_forward) on_forward(batch);
    const size_t rows = batch.tokens.size();
    num_rows += rows;
    max_rows = std::max(max_rows, static_cast<int>(rows));
    std::vector<std::array<double, kDim>> hidden(rows);
    for (size_t r = 0; r < rows; ++r) {
      for (int d = 0; d < kDim; ++d) hidden[r][d] = Unit(batch.tokens[r], d, 1);
    }
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const RowGroup& g : batch.groups) {
        for (int i = 0; i < g.num_rows; ++i) Write(pool, layer, g, i, hidden[g.row_begin + i]);
      }
      for (const RowGroup& g : batch.groups) {
        for (int i = 0; i < g.num_rows; ++i) Attend(pool, layer, g, i, hidden[g.row_begin + i]);
      }
      if (after_layer) after_layer(layer);
    }
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      const auto& h = hidden[batch.logit_rows[i]];
      for (int v = 0; v < kVocab; ++v) {
        double sum = 0;
        for (int d = 0; d < kDim; ++d) sum += h[d] * Unit(v, d, 2);
        logits[i * kVocab + v] = static_cast<float>(2.5 * sum);
      }
    }
  }

 private:
  // A fixed pseudo-random number in [-1, 1).
  static double Unit(int a, int b, int c) {
    uint64_t x = (uint64_t(a) * 1000003 + b) * 1000003 + c;
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return static_cast<double>(x >> 11) * 0x1p-52 - 1;
  }
  static Bf16* Tile(const KvPoolView& pool, BlockId block, int layer, KvKind kind) {
    return reinterpret_cast<Bf16*>(pool.tile(block, layer, kind, 0));
  }
  static void Write(const KvPoolView& pool, int layer, const RowGroup& g, int i,
                    const std::array<double, kDim>& h) {
    const int p = g.position + i, slot = p % kBlockSize;
    const BlockId block = g.block_table[p / kBlockSize];
    Bf16* k = Tile(pool, block, layer, KvKind::kKey);
    Bf16* v = Tile(pool, block, layer, KvKind::kValue);
    for (int d = 0; d < kDim; ++d) {
      k[d * kBlockSize + slot] = ToBf16(static_cast<float>(h[d] + 0.3 * Unit(p % 97, d, 3)));
      v[slot * kDim + d] = ToBf16(static_cast<float>(h[(d + 5) % kDim]));
    }
  }
  static void Attend(const KvPoolView& pool, int layer, const RowGroup& g, int i,
                     std::array<double, kDim>& h) {
    const int last = g.position + i;
    std::array<double, kDim> sum = {};
    for (int p = 0; p <= last; ++p) {
      const BlockId block = g.block_table[p / kBlockSize];
      const Bf16* k = Tile(pool, block, layer, KvKind::kKey);
      const Bf16* v = Tile(pool, block, layer, KvKind::kValue);
      const double weight = 1.0 / (1.0 + 0.2 * (last - p));
      const int slot = p % kBlockSize;
      for (int d = 0; d < kDim; ++d) {
        sum[d] += weight * (ToFloat(k[d * kBlockSize + slot]) + ToFloat(v[slot * kDim + d]));
      }
    }
    for (int d = 0; d < kDim; ++d) h[d] = 0.5 * h[d] + 0.35 * sum[d];
  }

  const std::unique_ptr<Backend> backend_ = cpu::CpuBackend::Create({});
  ModelConfig config_;
};

}  // namespace lynx
