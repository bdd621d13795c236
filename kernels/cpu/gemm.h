// SPDX-License-Identifier: Apache-2.0
// Matrix products with given kernels.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/gemm_scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "lynx/backend.h"

namespace lynx::cpu {

// The arguments of Backend::Gemm.
struct GemmCall {
  const float* x = nullptr;  // [rows, k]
  int rows = 0;
  int64_t k = 0;
  std::span<const GemmOutput> outputs;  // weights packed for `compute`
  Compute compute = Compute::kFast;
};

// Backend::Gemm with these kernels.
void RunGemm(ThreadPool& pool, const GemmKernels& kernels, const GemmCall& call,
             GemmScratch& scratch);

}  // namespace lynx::cpu
