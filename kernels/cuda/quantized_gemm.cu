// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_gemm.cuh"
#include "kernels/cuda/quantized_gemm.h"
#include "kernels/cuda/quantized_gemv.cuh"
#include "kernels/cuda/weight.h"

namespace lynx::cuda {
namespace {

QuantizedOutput OutputArgs(const GemmOutput& output, int rows) {
  const auto& weight = static_cast<const DeviceWeight&>(*output.weight);
  const QuantizedLayout layout(weight.type(), weight.n(), weight.k());
  const std::byte* scales = weight.data() + layout.scales_offset();
  return {.weight = {.codes = reinterpret_cast<const uint4*>(weight.data()),
                     .scales = reinterpret_cast<const uint32_t*>(scales),
                     .panels = static_cast<int>(layout.panels),
                     .blocks = static_cast<int>(layout.blocks)},
          .result = {.rows = rows,
                     .n = weight.n(),
                     .bias = output.bias,
                     .y = output.y,
                     .ldy = output.ldy,
                     .has_bias = output.bias != nullptr,
                     .accumulate = output.accumulate}};
}

// Gives every output the blocks for its panels; returns how many there are.
unsigned PlaceOutputs(int panels_per_block, QuantizedGemmArgs& args) {
  int blocks = 0;
  for (int i = 0; i < args.num_outputs; ++i) {
    args.outputs[i].first_block = blocks;
    blocks += (args.outputs[i].weight.panels + panels_per_block - 1) / panels_per_block;
  }
  return static_cast<unsigned>(blocks);
}

template <typename Format>
void LaunchFormat(cudaStream_t stream, QuantizedGemmArgs& args) {
  const int tiles = args.x.row_tiles;
  if (tiles <= 2) {
    const auto kernel =
        tiles == 1 ? QuantizedGemvKernel<Format, 1> : QuantizedGemvKernel<Format, 2>;
    Launch({.grid = dim3(PlaceOutputs(1, args)),
            .block = dim3(kGemvWarps * kWarpSize),
            .stream = stream},
           kernel, args, "QuantizedGemvKernel");
  } else {
    const auto row_blocks = static_cast<unsigned>((tiles + kGemmRowTiles - 1) / kGemmRowTiles);
    Launch({.grid = dim3(PlaceOutputs(kGemmPanels, args), row_blocks),
            .block = dim3(kGemmThreads),
            .stream = stream},
           QuantizedGemmKernel<Format>, args, "QuantizedGemmKernel");
  }
}

void LaunchOutputs(cudaStream_t stream, const Int8Activations& x, int rows,
                   std::span<const GemmOutput> outputs) {
  QuantizedGemmArgs args{.x = {.codes = x.codes,
                               .scales = x.scales,
                               .scaled_sums = x.scaled_sums,
                               .row_tiles = NumRowTiles(rows)},
                         .num_outputs = static_cast<int>(outputs.size())};
  for (size_t i = 0; i < outputs.size(); ++i) args.outputs[i] = OutputArgs(outputs[i], rows);
  switch (outputs[0].weight->type()) {
    case WeightType::kQ4_0:
      return LaunchFormat<FormatQ4_0>(stream, args);
    case WeightType::kQ4_1:
      return LaunchFormat<FormatQ4_1>(stream, args);
    default:
      return LaunchFormat<FormatQ8_0>(stream, args);
  }
}

}  // namespace

void QuantizedGemm(cudaStream_t stream, const Int8Activations& x, int rows,
                   std::span<const GemmOutput> outputs) {
  if (rows == 0) return;
  while (!outputs.empty()) {
    const size_t count = std::min<size_t>(outputs.size(), kMaxQuantizedOutputs);
    LaunchOutputs(stream, x, rows, outputs.first(count));
    outputs = outputs.subspan(count);
  }
}

}  // namespace lynx::cuda
