// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rms_norm.h"

#include <cmath>

#include "kernels/common/math_ref.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row_split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

void RmsNormRow(const float* x, const float* weight, float eps, int dim, float* y) {
  const int whole = dim / kLanes * kLanes, tail = dim - whole;
  F16 sum = SetAll(0.0f);
  for (int i = 0; i < whole; i += kLanes) {
    const F16 v = LoadLanes(x + i);
    sum = Fma(v, v, sum);
  }
  if (tail != 0) {
    const F16 v = LoadLanes(x + whole, tail);
    sum = Fma(v, v, sum);
  }
  const F16 scale = SetAll(1.0f / std::sqrt(SumLanes(sum) / static_cast<float>(dim) + eps));
  for (int i = 0; i < whole; i += kLanes) {
    StoreLanes(Mul(Mul(LoadLanes(x + i), scale), LoadLanes(weight + i)), y + i);
  }
  if (tail != 0) {
    const F16 v = Mul(Mul(LoadLanes(x + whole, tail), scale), LoadLanes(weight + whole, tail));
    StoreLanes(v, y + whole, tail);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

void RmsNormRowRef(const float* x, const float* weight, float eps, int dim, float* y) {
  float lanes[kLanes] = {};
  for (int i = 0; i < dim; ++i) lanes[i % kLanes] = std::fma(x[i], x[i], lanes[i % kLanes]);
  const float scale = 1.0f / std::sqrt(SumLanesRef(lanes) / static_cast<float>(dim) + eps);
  for (int i = 0; i < dim; ++i) y[i] = x[i] * scale * weight[i];
}

void CpuBackend::RmsNorm(const float* x, const float* weight, float eps, int64_t n, int dim,
                         float* y) {
  const auto row = LYNX_CPU_SELECT(options_.target, RmsNormRow);
  SplitRows(pool_, n, dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(x + r * dim, weight, eps, dim, y + r * dim);
  });
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
