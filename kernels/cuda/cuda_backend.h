// SPDX-License-Identifier: Apache-2.0
// The CUDA back-end: one GPU, Compute::kFast only.
//
// The forward pass is queued on the compute stream; Logits and EndForward wait for it, so between
// two steps the GPU holds nothing of the engine's. KvWritten records an event for its layer, which
// the plane encoder's stream waits for: anchors leave the device while later layers compute. Bytes
// between host and device go through pinned memory (step_staging.h, plane_transfer.h).
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/bf16_gemm.h"
#include "kernels/cuda/cuda_chunks.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/plane_transfer.h"
#include "kernels/cuda/step_staging.h"
#include "kernels/cuda/stream.h"
#include "lynx/backend.h"

namespace lynx::cuda {

// "sm_90", or nothing when there is no such device or it cannot be used, with *error saying what is
// missing, at most error_bytes long.
using DeviceTarget = std::array<char, 16>;
std::optional<DeviceTarget> CheckDevice(int device, char* error, size_t error_bytes);

class CudaBackend final : public Backend {
 public:
  struct Options {
    int device = 0;
    int num_threads = 1;  // that pack weights
  };
  // Null when there is no such device, with *error saying what is missing, at most error_bytes
  // long.
  static std::unique_ptr<CudaBackend> Create(const Options& options, char* error,
                                             size_t error_bytes);
  ~CudaBackend() override;

  const char* name() const override;
  const char* target() const override { return target_.data(); }
  Compute compute() const override { return Compute::kFast; }
  int num_threads() const override { return pool_.num_threads(); }
  int device() const { return device_; }
  // Other streams may wait for it and it for them; for what takes part in a forward pass.
  cudaStream_t compute_stream() const { return compute_.get(); }

  bool is_host() const override { return false; }
  Buffer Allocate(size_t bytes) override;
  void Free(std::byte* memory, size_t bytes) override;
  int64_t free_bytes(int num_sharers) const override;
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;

  std::unique_ptr<Weight> PackWeight(const WeightView& view) override;
  std::unique_ptr<Weight> PackEmbedding(const WeightView& view) override;
  const char* Reserve(const StepLimits& limits) override;

  void BeginForward(const ForwardBatch& batch) override;
  void EndForward() override;
  void Embed(const Weight& table, std::span<const TokenId> ids, float* out) override;
  void GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) override;
  void RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
               float* y) override;
  void Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) override;
  void Logits(const LogitsParams& params) override;
  bool chooses_tokens() const override { return true; }
  void Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
            const RopeTable& table) override;
  void KvWrite(const KvWriteParams& params) override;
  void KvWritten(int layer) override;
  void Attention(const AttentionParams& params) override;
  void SiluMul(const float* gate, const float* up, int64_t n, float* y) override;

  void PlaneEncode(std::span<const PlaneEncodeParams> pages) const override;
  void PlaneDecode(std::span<const PlaneDecodeParams> pages) const override;
  int max_plane_batch() const override { return kMaxPlaneBatch; }
  void ReadTiles(int layer, std::span<const std::byte* const> tiles, size_t tile_bytes,
                 std::byte* to) const override;
  void WriteTiles(std::span<std::byte* const> tiles, size_t tile_bytes,
                  const std::byte* from) const override;
  DeviceChunks* device_chunks() const override { return chunks_.get(); }

 private:
  // Logits are computed and fetched so many rows at a time.
  static constexpr int kLogitRows = 64;

  CudaBackend(const Options& options, const DeviceTarget& target);

  void UseDevice() const;  // makes the device the calling thread's
  void DownloadLogits(const LogitsParams& params, int begin, int count);
  void DownloadChoices(std::span<RowChoice> choices);

  const int device_;
  const DeviceTarget target_;
  cpu::ThreadPool pool_;
  const Stream compute_;
  int64_t own_bytes_ = 0;  // that Allocate and Reserve have taken, small things apart
  Bf16Gemm bf16_gemm_;

  // By Reserve.
  std::unique_ptr<StepStaging> staging_;
  DeviceMemory gemm_scratch_, attention_scratch_, sample_scratch_;
  DeviceMemory logits_;         // float [kLogitRows, vocab_size]
  PinnedMemory pinned_logits_;  // same
  DeviceMemory choices_;        // Choice [max_rows]
  PinnedMemory pinned_choices_;
  std::vector<Event> kv_written_;  // [num_layers]
  std::unique_ptr<PlaneEncoder> encoder_;
  std::unique_ptr<PlaneDecoder> decoder_;
  std::unique_ptr<TileCopier> tiles_;
  std::unique_ptr<CudaChunks> chunks_;
};

}  // namespace lynx::cuda
