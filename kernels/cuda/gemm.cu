// SPDX-License-Identifier: Apache-2.0
// Activations are converted once for all outputs. BF16 products run in slabs of rows, so that
// their float32 sums stay bounded. Scratch: activations of either form, then the sums.
#include <algorithm>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_gemm.h"
#include "kernels/cuda/round_rows.cuh"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

constexpr size_t kMaxSumBytes = size_t{64} << 20;  // of a slab, unless one tile needs more

int NumTiles(int rows) { return (rows + kBf16TileRows - 1) / kBf16TileRows; }

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

size_t TileSumBytes(int64_t n) { return size_t(PaddedOutputs(n)) * kBf16TileRows * sizeof(float); }

int SlabTiles(int rows, int64_t n) {
  const auto fitting =
      static_cast<int>(std::clamp<size_t>(kMaxSumBytes / TileSumBytes(n), 1, kMaxBf16Tiles));
  return std::min(fitting, NumTiles(rows));
}

size_t RoundedBytes(int rows, int64_t k) {
  return Aligned(size_t(NumTiles(rows)) * kBf16TileRows * PaddedInputs(k) * sizeof(Bf16));
}

unsigned Columns(int64_t n) {
  return static_cast<unsigned>((n + kRoundRowsThreads - 1) / kRoundRowsThreads);
}

void RoundRows(cudaStream_t stream, const float* x, int rows, int64_t k, Bf16* out) {
  const int64_t padded_k = PaddedInputs(k);
  const auto padded_rows = static_cast<unsigned>(NumTiles(rows) * kBf16TileRows);
  Launch({.grid = dim3(padded_rows, Columns(padded_k)),
          .block = dim3(kRoundRowsThreads),
          .stream = stream},
         RoundRowsKernel,
         RoundRowsArgs{.x = x, .rows = rows, .k = k, .padded_k = padded_k, .out = out},
         "RoundRowsKernel");
}

// One output, its sums in `sums`.
void Bf16Output(cudaStream_t stream, Bf16Gemm& bf16, const Bf16* x, int rows,
                const GemmOutput& output, float* sums) {
  const auto& weight = static_cast<const DeviceWeight&>(*output.weight);
  const int64_t n = PaddedOutputs(weight.n()), k = PaddedInputs(weight.k());
  const int slab = SlabTiles(rows, n);
  for (int tile = 0; tile < NumTiles(rows); tile += slab) {
    const int first = tile * kBf16TileRows;
    const int tiles = std::min(slab, NumTiles(rows) - tile);
    bf16.Run(stream, x + first * k, tiles, reinterpret_cast<const Bf16*>(weight.data()), n, k,
             sums);
    const int slab_rows = std::min(tiles * kBf16TileRows, rows - first);
    Launch({.grid = dim3(static_cast<unsigned>(slab_rows), Columns(weight.n())),
            .block = dim3(kRoundRowsThreads),
            .stream = stream},
           FinishRowsKernel,
           FinishRowsArgs{.sums = sums,
                          .ld = n,
                          .result = {.rows = slab_rows,
                                     .n = weight.n(),
                                     .bias = output.bias,
                                     .y = output.y + first * output.ldy,
                                     .ldy = output.ldy,
                                     .has_bias = output.bias != nullptr,
                                     .accumulate = output.accumulate}},
           "FinishRowsKernel");
  }
}

bool IsBf16(const GemmOutput& output) { return output.weight->type() == WeightType::kBf16; }

}  // namespace

size_t GemmScratchBytes(const GemmLimits& limits) {
  const size_t int8 = Aligned(Int8ActivationBytes(limits.max_rows, PaddedInputs(limits.max_k)));
  const size_t tiles = SlabTiles(limits.max_rows, limits.max_n);
  // Narrower outputs run in slabs of more tiles, up to the bound.
  const size_t sums =
      std::max(tiles * TileSumBytes(limits.max_n),
               std::min(kMaxSumBytes, std::min(kMaxBf16Tiles, NumTiles(limits.max_rows)) *
                                          TileSumBytes(limits.max_n)));
  return int8 + RoundedBytes(limits.max_rows, limits.max_k) + sums;
}

void Gemm(cudaStream_t stream, Bf16Gemm& bf16, const float* x, int rows, int64_t k,
          std::span<const GemmOutput> outputs, std::byte* scratch) {
  if (rows == 0) return;
  const bool any_bf16 = std::any_of(outputs.begin(), outputs.end(), IsBf16);
  const bool any_int8 = !std::all_of(outputs.begin(), outputs.end(), IsBf16);
  Int8Activations int8;
  if (any_int8) {
    int8 = Int8ActivationsAt(scratch, rows, k);
    QuantizeRows(stream, x, rows, k, int8);
    scratch += Aligned(Int8ActivationBytes(rows, k));
  }
  auto* rounded = reinterpret_cast<Bf16*>(scratch);
  auto* sums = reinterpret_cast<float*>(scratch + RoundedBytes(rows, k));
  if (any_bf16) RoundRows(stream, x, rows, k, rounded);
  while (!outputs.empty()) {
    const WeightType type = outputs[0].weight->type();
    const auto other = std::find_if(outputs.begin(), outputs.end(), [type](const GemmOutput& out) {
      return out.weight->type() != type;
    });
    const auto run = outputs.first(static_cast<size_t>(other - outputs.begin()));
    if (type == WeightType::kBf16) {
      for (const GemmOutput& out : run) Bf16Output(stream, bf16, rounded, rows, out, sums);
    } else {
      QuantizedGemm(stream, int8, rows, run);
    }
    outputs = outputs.subspan(run.size());
  }
}

}  // namespace lynx::cuda
