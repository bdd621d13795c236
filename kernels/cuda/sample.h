// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lynx/choice.h"

namespace lynx::cuda {

// Device pointers.
struct SampleParams {
  const float* logits = nullptr;  // [rows, ld]
  int64_t ld = 0;
  int rows = 0;
  int vocab_size = 0;
  const RowChoice* params = nullptr;  // [rows]
  std::byte* scratch = nullptr;       // SampleScratchBytes, 8-byte aligned
  Choice* choices = nullptr;          // [rows], written where params say wanted
};

size_t SampleScratchBytes(int max_rows, int vocab_size);

void Sample(cudaStream_t stream, const SampleParams& params);

}  // namespace lynx::cuda
