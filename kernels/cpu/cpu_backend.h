// SPDX-License-Identifier: Apache-2.0
// The CPU back-end. Each operation is defined in a file of its own beside this one, next to its
// scalar reference (`…Ref`), and runs on the instruction set that was chosen at creation.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "lynx/backend.h"

namespace lynx::cpu {

class CpuBackend final : public Backend {
 public:
  struct Options {
    Compute compute = Compute::kFast;
    int num_threads = 1;
    Target target = Target::kAuto;
  };
  // Null when this processor lacks the target.
  static std::unique_ptr<CpuBackend> Create(const Options& options);
  ~CpuBackend() override;

  const char* name() const override { return "cpu"; }
  const char* target() const override;
  Compute compute() const override { return options_.compute; }
  int num_threads() const override { return pool_.num_threads(); }

  std::unique_ptr<Weight> PackWeight(const WeightView& view) override;
  void Embed(const WeightView& table, std::span<const TokenId> ids, float* out) override;
  void RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
               float* y) override;
  void Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) override;
  void Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
            const RopeTable& table) override;
  void KvWrite(const KvWriteParams& params) override;
  void Attention(const AttentionParams& params) override;
  void SiluMul(const float* gate, const float* up, int64_t n, float* y) override;
  void PlaneEncode(const PlaneEncodeParams& params) const override;
  void PlaneDecode(const PlaneDecodeParams& params) const override;

 private:
  explicit CpuBackend(const Options& options);

  struct GemmScratch;       // gemm.cc: converted activations
  struct AttentionScratch;  // attention.cc: segment results

  Options options_;  // target resolved
  ThreadPool pool_;
  std::unique_ptr<GemmScratch> gemm_scratch_;
  std::unique_ptr<AttentionScratch> attention_scratch_;
};

}  // namespace lynx::cpu
