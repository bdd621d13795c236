// SPDX-License-Identifier: Apache-2.0
// Times the model's forward pass exactly as the engine calls it: prefill in chunks of the token
// budget, decode as one row for each sequence of the batch.
#include "bench/engine.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "app/build_engine.h"
#include "bench/json_lines.h"
#include "bench/timing.h"
#include "kernels/cpu/machine_probe.h"
#include "kernels/cpu/target.h"
#include "kv/kv_cache.h"
#include "model/model.h"

namespace lynx {
namespace {

constexpr int kChunk = 512;

// Sequences of a benchmark: `batch` of them, with blocks for `tokens` each.
class Sequences {
 public:
  Sequences(int batch, int tokens) : tables_(batch) {
    BlockId next = 0;
    for (auto& table : tables_) {
      for (int t = 0; t < tokens; t += kBlockSize) table.push_back(next++);
    }
  }
  int num_blocks() const { return static_cast<int>(tables_.size() * tables_[0].size()); }
  const BlockId* table(int sequence) const { return tables_[sequence].data(); }
  int size() const { return static_cast<int>(tables_.size()); }

 private:
  std::vector<std::vector<BlockId>> tables_;
};

class EngineBench {
 public:
  EngineBench(const BenchEngineOptions& options, cpu::CpuBackend& backend, Model& model)
      : options_(options),
        backend_(backend),
        model_(model),
        logits_(model.config().vocab_size * 64) {
    cpu::ThreadPool pool(backend.num_threads());
    bandwidth_ = cpu::MeasureReadBandwidth(pool, std::max<size_t>(model.weight_bytes(), 64 << 20));
    fma_peak_ = cpu::MeasureFmaPeak(pool, cpu::Best());
  }

  absl::Status Check() const {
    for (int tokens : options_.prefill) LYNX_RETURN_IF_ERROR(CheckLength("--prefill", tokens));
    for (int depth : options_.depth) {
      if (depth < 0) return absl::InvalidArgumentError("--depth: less than 0");
      LYNX_RETURN_IF_ERROR(CheckLength("--depth", depth + kSteps + 1));
    }
    for (int batch : options_.batch) {
      if (batch < 1 || batch > 64) return absl::InvalidArgumentError("--batch: not in 1..64");
    }
    return absl::OkStatus();
  }

  absl::Status Prefill(int tokens) {
    const Sequences sequences(1, tokens);
    LYNX_ASSIGN_OR_RETURN(const auto cache,
                          KvCache::Create(backend_, model_.kv_layout(), sequences.num_blocks()));
    const Timing timing = Measure(options_.repeats, [&] { Fill(*cache, sequences, 0, tokens); });
    Print({{"kind", "prefill"}, {"tokens", tokens}, {"batch", 1}}, tokens, timing,
          fma_peak_ / PrefillFlops(tokens) * tokens, 1);
    return absl::OkStatus();
  }

  absl::Status Decode(int depth, int batch) {
    const Sequences sequences(batch, depth + kSteps + 1);
    LYNX_ASSIGN_OR_RETURN(const auto cache,
                          KvCache::Create(backend_, model_.kv_layout(), sequences.num_blocks()));
    for (int s = 0; s < batch; ++s) Fill(*cache, sequences, s, depth);
    const Timing timing = Measure(options_.repeats, [&] {
      for (int i = 0; i < kSteps; ++i) Step(*cache, sequences, depth + i);
    });
    const KvLayout layout = model_.kv_layout();
    const double kv_bytes = double(depth) * batch * layout.block_bytes() / kBlockSize;
    Print({{"kind", "decode"}, {"depth", depth}, {"batch", batch}}, kSteps * batch, timing,
          batch * bandwidth_ / (model_.weight_bytes() + kv_bytes), kSteps);
    return absl::OkStatus();
  }

 private:
  static constexpr int kSteps = 16;

  absl::Status CheckLength(const char* flag, int tokens) const {
    if (tokens >= 1 && tokens <= model_.config().max_model_len) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", tokens, " tokens are not in 1..",
                                                   model_.config().max_model_len,
                                                   ", the model's context"));
  }

  // Linear layers of every token, attention over half of the prompt on average, one row of head.
  double PrefillFlops(int tokens) const {
    const ModelConfig& c = model_.config();
    const double q = double(c.num_heads) * c.head_dim, kv = double(c.num_kv_heads) * c.head_dim;
    const double linear =
        c.hidden_size * (2 * q + 2 * kv) + 3.0 * c.hidden_size * c.intermediate_size;
    const double attention = 2 * q * (tokens / 2.0);
    return 2.0 * tokens * c.num_layers * (linear + attention);
  }

  void Run(const KvCache& cache, std::span<const RowGroup> groups,
           std::span<const int32_t> positions, std::span<const int32_t> logit_rows) {
    std::vector<TokenId> tokens(positions.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<TokenId>((positions[i] * 7919 + 13) % model_.config().vocab_size);
    }
    model_.Forward(
        {.tokens = tokens, .positions = positions, .groups = groups, .logit_rows = logit_rows},
        cache.view(), logits_.data());
  }

  void Fill(const KvCache& cache, const Sequences& sequences, int sequence, int tokens) {
    for (int begin = 0; begin < tokens; begin += kChunk) {
      const int rows = std::min(kChunk, tokens - begin);
      const RowGroup group{0, rows, begin, sequences.table(sequence)};
      std::vector<int32_t> positions(rows);
      std::iota(positions.begin(), positions.end(), begin);
      const int32_t last = rows - 1;
      const bool is_last = begin + rows == tokens;
      Run(cache, {&group, 1}, positions, {&last, is_last ? size_t{1} : 0});
    }
  }

  void Step(const KvCache& cache, const Sequences& sequences, int position) {
    std::vector<RowGroup> groups;
    std::vector<int32_t> positions(sequences.size(), position), rows;
    for (int s = 0; s < sequences.size(); ++s) {
      groups.push_back({s, 1, position, sequences.table(s)});
      rows.push_back(s);
    }
    Run(cache, groups, positions, rows);
  }

  void Print(nlohmann::ordered_json line, int tokens, const Timing& timing, double bound,
             int steps) const {
    const double rate = tokens / timing.median_s;
    line["threads"] = backend_.num_threads();
    line["tok_per_s"] = rate;
    line["step_ms"] = 1e3 * timing.median_s / steps;
    line["spread"] = timing.spread;
    line["bound_tok_per_s"] = bound;
    line["of_bound"] = rate / bound;
    line["target"] = backend_.target();
    line["read_gb_per_s"] = bandwidth_ / 1e9;
    line["fma_gflop_per_s"] = fma_peak_ / 1e9;
    PrintJson(line);
  }

  const BenchEngineOptions& options_;
  cpu::CpuBackend& backend_;
  Model& model_;
  std::vector<float> logits_;
  double bandwidth_ = 0;
  double fma_peak_ = 0;
};

}  // namespace

absl::Status RunBenchEngine(const BenchEngineOptions& options) {
  if (options.config.device != "cpu") {
    return absl::InvalidArgumentError("bench engine: measures the cpu back-end only");
  }
  LYNX_ASSIGN_OR_RETURN(const auto backend, MakeBackend(options.config, options.threads));
  LYNX_ASSIGN_OR_RETURN(const auto model,
                        Model::Load(options.config.model, *backend, kChunk, /*progress=*/nullptr,
                                    /*max_model_len=*/0, CacheDirectory(options.config)));
  EngineBench bench(options, static_cast<cpu::CpuBackend&>(*backend), *model);
  LYNX_RETURN_IF_ERROR(bench.Check());
  for (int tokens : options.prefill) LYNX_RETURN_IF_ERROR(bench.Prefill(tokens));
  for (int depth : options.depth) {
    for (int batch : options.batch) LYNX_RETURN_IF_ERROR(bench.Decode(depth, batch));
  }
  return absl::OkStatus();
}

}  // namespace lynx
