// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample.cuh"
#include "kernels/cuda/sample.h"

namespace lynx::cuda {
namespace {

int NumSlices(int vocab_size) { return (vocab_size + kSampleSlice - 1) / kSampleSlice; }

}  // namespace

size_t SampleScratchBytes(int max_rows, int vocab_size) {
  return size_t(max_rows) * NumSlices(vocab_size) * sizeof(TopTwo);
}

void Sample(cudaStream_t stream, const SampleParams& params) {
  if (params.rows == 0) return;
  const SampleArgs args{.logits = params.logits,
                        .ld = params.ld,
                        .vocab_size = params.vocab_size,
                        .slices = NumSlices(params.vocab_size),
                        .params = params.params,
                        .tops = reinterpret_cast<TopTwo*>(params.scratch),
                        .choices = params.choices};
  const auto rows = static_cast<unsigned>(params.rows);
  Launch({.grid = dim3(static_cast<unsigned>(args.slices), rows),
          .block = dim3(kSampleThreads),
          .stream = stream},
         SampleSliceKernel, args, "SampleSliceKernel");
  Launch({.grid = dim3(rows), .block = dim3(kWarpSize), .stream = stream}, SampleJoinKernel, args,
         "SampleJoinKernel");
}

}  // namespace lynx::cuda
