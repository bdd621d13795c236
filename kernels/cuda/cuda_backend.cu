// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/embed.h"
#include "kernels/cuda/gather_rows.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kv_write.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/silu_mul.h"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

#ifdef LYNX_SIMT
constexpr const char* kName = "simt";
#else
constexpr const char* kName = "cuda";
#endif

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "CUDA back-end: %s\n", what);
  std::abort();
}

// The table as it lies in the file, in output order.
class DeviceTable final : public Weight {
 public:
  DeviceTable(const WeightView& view, Buffer memory) : view_(view), memory_(std::move(memory)) {
    view_.data = memory_.get();
    view_.row_order = nullptr;
  }
  int64_t n() const override { return view_.n; }
  int64_t k() const override { return view_.k; }
  WeightType type() const override { return view_.type; }
  size_t bytes() const override { return memory_.get_deleter().bytes; }
  const WeightView& view() const { return view_; }

 private:
  WeightView view_;
  Buffer memory_;
};

}  // namespace

// ---- the device ---------------------------------------------------------------------------------

std::optional<DeviceTarget> CheckDevice(int device, char* error, size_t error_bytes) {
  int count = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&count); e != cudaSuccess || count == 0) {
    std::snprintf(error, error_bytes, "no GPU can be used (is the NVIDIA driver installed?): %s",
                  e == cudaSuccess ? "the driver shows none" : cudaGetErrorString(e));
    return std::nullopt;
  }
  if (device >= count) {
    std::snprintf(error, error_bytes, "GPU %d is asked for, but there are %d", device, count);
    return std::nullopt;
  }
  cudaDeviceProp properties = {};
  AbortOnError(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (properties.major < 8) {
    std::snprintf(error, error_bytes, "GPU %d (%s) has compute capability %d.%d, want 8.0 or newer",
                  device, properties.name, properties.major, properties.minor);
    return std::nullopt;
  }
  DeviceTarget target = {};
  std::snprintf(target.data(), target.size(), "sm_%d%d", properties.major, properties.minor);
  return target;
}

std::unique_ptr<CudaBackend> CudaBackend::Create(const Options& options, char* error,
                                                 size_t error_bytes) {
  const std::optional<DeviceTarget> target = CheckDevice(options.device, error, error_bytes);
  if (!target) return nullptr;
  AbortOnError(cudaSetDevice(options.device), "cudaSetDevice");
  if (const cudaError_t e = CheckDeviceCode(); e != cudaSuccess) {
    std::snprintf(error, error_bytes, "this build does not run on GPU %d (%s): %s", options.device,
                  target->data(), cudaGetErrorString(e));
    return nullptr;
  }
  return std::unique_ptr<CudaBackend>(new CudaBackend(options, *target));
}

CudaBackend::CudaBackend(const Options& options, const DeviceTarget& target)
    : device_(options.device), target_(target), pool_(options.num_threads) {}

CudaBackend::~CudaBackend() { UseDevice(); }

const char* CudaBackend::name() const { return kName; }

void CudaBackend::UseDevice() const { AbortOnError(cudaSetDevice(device_), "cudaSetDevice"); }

// ---- memory -------------------------------------------------------------------------------------

Buffer CudaBackend::Allocate(size_t bytes) {
  UseDevice();
  DeviceMemory memory = AllocateDevice(bytes);
  if (memory == nullptr) return nullptr;
  AbortOnError(cudaMemsetAsync(memory.get(), 0, bytes, compute_.get()), "cudaMemsetAsync");
  compute_.Synchronize();
  own_bytes_ += static_cast<int64_t>(bytes);
  return Buffer(memory.release(), {.backend = this, .bytes = bytes});
}

void CudaBackend::Free(std::byte* memory, size_t bytes) {
  UseDevice();
  own_bytes_ -= static_cast<int64_t>(bytes);
  AbortOnError(cudaFree(memory), "cudaFree");
}

int64_t CudaBackend::free_bytes(int num_sharers) const {
  UseDevice();
  size_t free = 0, total = 0;
  AbortOnError(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  const auto available = static_cast<int64_t>(free);
  if (num_sharers == 1) return available;
  const int64_t share = static_cast<int64_t>(total) / num_sharers - own_bytes_;
  return std::clamp<int64_t>(share, 0, available);
}

void CudaBackend::Upload(void* to, const void* from, size_t bytes) {
  UseDevice();
  compute_.Copy(to, from, bytes, cudaMemcpyHostToDevice);
  compute_.Synchronize();
}

void CudaBackend::Download(void* to, const void* from, size_t bytes) {
  UseDevice();
  compute_.Copy(to, from, bytes, cudaMemcpyDeviceToHost);
  compute_.Synchronize();
}

std::unique_ptr<Weight> CudaBackend::PackWeight(const WeightView& view) {
  UseDevice();
  const DeviceMatrix matrix = PackForDevice(pool_, view);
  Buffer memory = Allocate(matrix.bytes.size());
  if (memory == nullptr) return nullptr;
  Upload(memory.get(), matrix.bytes.data(), matrix.bytes.size());
  if (matrix.type == WeightType::kBf16) {
    bf16_gemm_.Plan(PaddedOutputs(matrix.n), PaddedInputs(matrix.k));
  }
  return std::make_unique<DeviceWeight>(matrix, std::move(memory));
}

std::unique_ptr<Weight> CudaBackend::PackEmbedding(const WeightView& view) {
  const size_t bytes = size_t(view.n) * view.row_bytes;
  Buffer memory = Allocate(bytes);
  if (memory == nullptr) return nullptr;
  if (view.row_order == nullptr) {
    Upload(memory.get(), view.data, bytes);
  } else {
    for (int64_t i = 0; i < view.n; ++i) {
      Upload(memory.get() + i * view.row_bytes, view.data + view.row_order[i] * view.row_bytes,
             view.row_bytes);
    }
  }
  return std::make_unique<DeviceTable>(view, std::move(memory));
}

const char* CudaBackend::Reserve(const StepLimits& limits) {
  UseDevice();
  if (!IsAttentionHeadDim(limits.head_dim)) {
    return "its head_dim is none of 16, 32, 64, 96, 128 and 256";
  }
  if (limits.hidden_size > kMaxNormDim) return "its hidden_size is above 16384";
  const int64_t q_size = int64_t{limits.num_heads} * limits.head_dim;
  const int64_t widest = std::max<int64_t>({limits.hidden_size, limits.intermediate_size, q_size});
  const size_t gemm_bytes = std::max(
      GemmScratchBytes({.max_rows = limits.max_rows, .max_n = widest, .max_k = widest}),
      GemmScratchBytes(
          {.max_rows = kLogitRows, .max_n = limits.vocab_size, .max_k = limits.hidden_size}));
  const size_t logit_bytes = size_t{kLogitRows} * limits.vocab_size * sizeof(float);
  const size_t choice_bytes = size_t(limits.max_rows) * sizeof(Choice);
  const size_t attention_bytes = AttentionScratchBytes(AttentionLimitsOf(limits));
  const size_t sample_bytes = SampleScratchBytes(kLogitRows, limits.vocab_size);
  staging_ = StepStaging::Create(limits);
  gemm_scratch_ = AllocateDevice(gemm_bytes);
  attention_scratch_ = AllocateDevice(attention_bytes);
  sample_scratch_ = AllocateDevice(sample_bytes);
  logits_ = AllocateDevice(logit_bytes);
  pinned_logits_ = AllocatePinned(logit_bytes);
  choices_ = AllocateDevice(choice_bytes);
  pinned_choices_ = AllocatePinned(choice_bytes);
  kv_written_ = std::vector<Event>(limits.num_layers);
  encoder_ = PlaneEncoder::Create(limits.head_dim);
  decoder_ = PlaneDecoder::Create(limits.head_dim);
  tiles_ = TileCopier::Create();
  if (encoder_ != nullptr) chunks_ = CudaChunks::Create(device_, *encoder_, kv_written_);
  own_bytes_ += static_cast<int64_t>(gemm_bytes + attention_bytes + sample_bytes + logit_bytes);
  const bool have_all = staging_ != nullptr && gemm_scratch_ != nullptr &&
                        attention_scratch_ != nullptr && sample_scratch_ != nullptr &&
                        logits_ != nullptr && pinned_logits_ != nullptr && choices_ != nullptr &&
                        pinned_choices_ != nullptr && encoder_ != nullptr && decoder_ != nullptr &&
                        tiles_ != nullptr && chunks_ != nullptr;
  return have_all ? nullptr : "there is not enough memory for steps of that many rows";
}

// ---- the forward pass ---------------------------------------------------------------------------

void CudaBackend::BeginForward(const ForwardBatch& batch) {
  UseDevice();
  staging_->Stage(compute_, batch);
}

void CudaBackend::EndForward() { compute_.Synchronize(); }

void CudaBackend::Embed(const Weight& table, std::span<const TokenId> ids, float* out) {
  Require(ids.data() == staging_->batch().tokens.data(), "Embed: other tokens than the step's");
  cuda::Embed(compute_.get(), static_cast<const DeviceTable&>(table).view(), staging_->tokens(),
              static_cast<int>(ids.size()), out);
}

void CudaBackend::GatherRows(const float* x, std::span<const int32_t> rows, int dim, float* y) {
  Require(rows.data() == staging_->batch().logit_rows.data(),
          "GatherRows: other rows than the step's");
  cuda::GatherRows(compute_.get(), x, staging_->logit_rows(), static_cast<int>(rows.size()), dim,
                   y);
}

void CudaBackend::RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
                          float* y) {
  cuda::RmsNorm(compute_.get(), x, weight, eps, n, dim, y);
}

void CudaBackend::Gemm(const float* x, int rows, int64_t k, std::span<const GemmOutput> outputs) {
  cuda::Gemm(compute_.get(), bf16_gemm_, x, rows, k, outputs, gemm_scratch_.get());
}

void CudaBackend::Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
                       const RopeTable& table) {
  Require(positions == staging_->batch().positions.data(), "Rope: other positions than the step's");
  cuda::Rope(compute_.get(), x, rows, num_heads, head_dim, staging_->positions(), table);
}

void CudaBackend::KvWrite(const KvWriteParams& params) {
  Require(params.groups.data() == staging_->batch().groups.data(),
          "KvWrite: other groups than the step's");
  cuda::KvWrite(compute_.get(), {.k = params.k,
                                 .v = params.v,
                                 .slots = staging_->slots(),
                                 .rows = static_cast<int>(staging_->batch().tokens.size()),
                                 .layer = params.layer,
                                 .pool = params.pool});
}

void CudaBackend::KvWritten(int layer) { kv_written_[layer].Record(compute_); }

void CudaBackend::Attention(const AttentionParams& params) {
  Require(params.groups.data() == staging_->batch().groups.data(),
          "Attention: other groups than the step's");
  cuda::Attention(compute_.get(), {.q = params.q,
                                   .out = params.out,
                                   .num_heads = params.num_heads,
                                   .layer = params.layer,
                                   .scale = params.scale,
                                   .sliding_window = params.sliding_window,
                                   .pool = params.pool,
                                   .work = staging_->attention(),
                                   .scratch = ArrayAt<float>(attention_scratch_.get(), 0)});
}

void CudaBackend::SiluMul(const float* gate, const float* up, int64_t n, float* y) {
  cuda::SiluMul(compute_.get(), gate, up, n, y);
}

// ---- logits and choices -------------------------------------------------------------------------

void CudaBackend::Logits(const LogitsParams& params) {
  const std::span<RowChoice> choices = params.choices;
  Require(choices.data() == staging_->batch().choices.data(),
          "Logits: other choices than the step's");
  const int64_t n = params.head.weight->n();
  for (int begin = 0; begin < params.rows; begin += kLogitRows) {
    const int count = std::min(kLogitRows, params.rows - begin);
    GemmOutput head = params.head;
    head.y = ArrayAt<float>(logits_.get(), 0);
    head.ldy = n;
    Gemm(params.x + begin * params.k, count, params.k, {&head, 1});
    if (!choices.empty()) {
      Sample(compute_.get(), {.logits = head.y,
                              .ld = n,
                              .rows = count,
                              .vocab_size = static_cast<int>(n),
                              .params = staging_->choices() + begin,
                              .scratch = sample_scratch_.get(),
                              .choices = ArrayAt<Choice>(choices_.get(), 0) + begin});
    }
    DownloadLogits(params, begin, count);
  }
  DownloadChoices(choices);
}

// Of rows whose choice is not wanted.
void CudaBackend::DownloadLogits(const LogitsParams& params, int begin, int count) {
  const int64_t n = params.head.weight->n();
  const auto* from = ArrayAt<const float>(logits_.get(), 0);
  auto* pinned = ArrayAt<float>(pinned_logits_.get(), 0);
  const auto wanted = [&](int i) {
    return params.choices.empty() || !params.choices[begin + i].wanted;
  };
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (!wanted(i)) continue;
    compute_.Copy(pinned + i * n, from + i * n, n * sizeof(float), cudaMemcpyDeviceToHost);
    any = true;
  }
  if (!any) return;
  compute_.Synchronize();
  for (int i = 0; i < count; ++i) {
    if (wanted(i)) std::copy_n(pinned + i * n, n, params.head.y + (begin + i) * params.head.ldy);
  }
}

void CudaBackend::DownloadChoices(std::span<RowChoice> choices) {
  if (choices.empty()) return;
  auto* pinned = ArrayAt<Choice>(pinned_choices_.get(), 0);
  compute_.Copy(pinned, choices_.get(), choices.size() * sizeof(Choice), cudaMemcpyDeviceToHost);
  compute_.Synchronize();
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].wanted) choices[i].choice = pinned[i];
  }
}

// ---- what moves KV ------------------------------------------------------------------------------

void CudaBackend::PlaneEncode(std::span<const PlaneEncodeParams> pages) const {
  UseDevice();
  if (!pages.empty()) encoder_->Encode(pages, kv_written_[pages[0].shape.layer].get());
}

void CudaBackend::PlaneDecode(std::span<const PlaneDecodeParams> pages) const {
  UseDevice();
  if (!pages.empty()) decoder_->Decode(pages);
}

void CudaBackend::ReadTiles(int layer, std::span<const std::byte* const> tiles, size_t tile_bytes,
                            std::byte* to) const {
  UseDevice();
  tiles_->Read(tiles, tile_bytes, kv_written_[layer].get(), to);
}

void CudaBackend::WriteTiles(std::span<std::byte* const> tiles, size_t tile_bytes,
                             const std::byte* from) const {
  UseDevice();
  tiles_->Write(tiles, tile_bytes, from);
}

}  // namespace lynx::cuda
