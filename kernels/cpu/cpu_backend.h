// SPDX-License-Identifier: Apache-2.0
// The CPU back-end. Each operation is defined in a file of its own beside this one, next to its
// scalar reference (`…Ref`), and runs on the instruction set that was chosen at creation.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_memory.h"
#include "lynx/backend.h"

namespace lynx::cpu {

struct AttentionScratch;  // attention_scratch.h
struct GemmScratch;       // gemm_scratch.h

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

  bool is_host() const override { return true; }
  Buffer Allocate(size_t bytes) override;
  void Free(std::byte* memory, size_t bytes) override;
  int64_t free_bytes(int num_sharers) const override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;

  std::unique_ptr<Weight> PackWeight(const WeightView& view) override;
  std::unique_ptr<Weight> PackEmbedding(const WeightView& view) override;
  const char* packed_layout() const override;
  std::unique_ptr<Weight> WrapPacked(const WeightView& view,
                                     std::span<const std::byte> packed) override;
  const char* Reserve(const StepLimits&) override { return nullptr; }

  void BeginForward(const ForwardBatch&) override {}
  void EndForward() override {}
  void Embed(const Weight& table, std::span<const TokenId> ids, float* out) override;
  void GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) override;
  void RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
               float* y) override;
  void Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) override;
  void Logits(const LogitsParams& params) override;
  bool chooses_tokens() const override { return false; }
  void Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
            const RopeTable& table) override;
  void KvWrite(const KvWriteParams& params) override;
  void KvWritten(int) override {}
  void Attention(const AttentionParams& params) override;
  void SiluMul(const float* gate, const float* up, int64_t n, float* y) override;

  void PlaneEncode(std::span<const PlaneEncodeParams> pages) const override;
  void PlaneDecode(std::span<const PlaneDecodeParams> pages) const override;
  // A page stays in the cache while it is worked on.
  int max_plane_batch() const override { return 1; }
  void ReadTiles(int layer, std::span<const std::byte* const> tiles, size_t tile_bytes,
                 std::byte* to) const override;
  void WriteTiles(std::span<std::byte* const> tiles, size_t tile_bytes,
                  const std::byte* from) const override;
  DeviceChunks* device_chunks() const override { return nullptr; }

 private:
  explicit CpuBackend(const Options& options);

  Options options_;  // target resolved
  ThreadPool pool_;
  WeightMemory weight_memory_;
  std::unique_ptr<GemmScratch> gemm_scratch_;
  std::unique_ptr<AttentionScratch> attention_scratch_;
};

}  // namespace lynx::cpu
