// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_backend.h"

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/gemm_scratch.h"

namespace lynx::cpu {

std::unique_ptr<CpuBackend> CpuBackend::Create(const Options& options) {
  if (options.num_threads < 1 || !Supports(options.target)) return nullptr;
  Options resolved = options;
  if (resolved.target == Target::kAuto) resolved.target = Best();
  return std::unique_ptr<CpuBackend>(new CpuBackend(resolved));
}

CpuBackend::CpuBackend(const Options& options)
    : options_(options),
      pool_(options.num_threads),
      gemm_scratch_(std::make_unique<GemmScratch>()),
      attention_scratch_(std::make_unique<AttentionScratch>()) {}

CpuBackend::~CpuBackend() = default;

const char* CpuBackend::target() const { return TargetName(options_.target); }

}  // namespace lynx::cpu
