// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantized_gemm.cuh"
#include "kernels/cuda/quantized_gemm.h"

namespace lynx::cuda {
namespace {

template <typename Format>
void LaunchFormat(cudaStream_t stream, const QuantizedGemmArgs& args) {
  const auto panels = static_cast<unsigned>(args.weight.panels);
  const dim3 gemv_block(kGemvWarps * kWarpSize);
  if (args.x.row_tiles == 1) {
    Launch({.grid = dim3(panels), .block = gemv_block, .stream = stream},
           QuantizedGemvKernel<Format, 1>, args, "QuantizedGemvKernel");
  } else if (args.x.row_tiles == 2) {
    Launch({.grid = dim3(panels), .block = gemv_block, .stream = stream},
           QuantizedGemvKernel<Format, 2>, args, "QuantizedGemvKernel");
  } else {
    const auto tiles = static_cast<unsigned>(args.x.row_tiles);
    Launch({.grid = dim3((panels + kGemmPanels - 1) / kGemmPanels,
                         (tiles + kGemmRowTiles - 1) / kGemmRowTiles),
            .block = dim3(kGemmThreads),
            .stream = stream},
           QuantizedGemmKernel<Format>, args, "QuantizedGemmKernel");
  }
}

}  // namespace

void QuantizedGemm(cudaStream_t stream, const Int8Activations& x, int rows,
                   const DeviceWeight& weight, const GemmOutput& output) {
  if (rows == 0) return;
  const QuantizedLayout layout(weight.type(), weight.n(), weight.k());
  const QuantizedGemmArgs args{.weight = {.codes = reinterpret_cast<const uint4*>(weight.data()),
                                          .scales = reinterpret_cast<const uint32_t*>(
                                              weight.data() + layout.scales_offset()),
                                          .panels = static_cast<int>(layout.panels),
                                          .blocks = static_cast<int>(layout.blocks)},
                               .x = {.codes = x.codes,
                                     .scales = x.scales,
                                     .scaled_sums = x.scaled_sums,
                                     .row_tiles = NumRowTiles(rows)},
                               .result = {.rows = rows,
                                          .n = weight.n(),
                                          .bias = output.bias,
                                          .y = output.y,
                                          .ldy = output.ldy,
                                          .has_bias = output.bias != nullptr,
                                          .accumulate = output.accumulate}};
  switch (weight.type()) {
    case WeightType::kQ4_0:
      return LaunchFormat<FormatQ4_0>(stream, args);
    case WeightType::kQ4_1:
      return LaunchFormat<FormatQ4_1>(stream, args);
    default:
      return LaunchFormat<FormatQ8_0>(stream, args);
  }
}

}  // namespace lynx::cuda
