// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/silu_mul.h"

#include "kernels/common/math_ref.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row_split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/silu_mul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE F16 SiluMul16(const F16& gate, const F16& up) {
  const F16 denominator = Add(SetAll(1.0f), Exp(Sub(SetAll(0.0f), gate)));
  return Mul(Div(gate, denominator), up);
}

void SiluMulRange(const float* gate, const float* up, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    StoreLanes(SiluMul16(LoadLanes(gate + i), LoadLanes(up + i)), y + i);
  }
  if (const int tail = static_cast<int>(n - i); tail != 0) {
    StoreLanes(SiluMul16(LoadLanes(gate + i, tail), LoadLanes(up + i, tail)), y + i, tail);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

void SiluMulRangeRef(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + ExpRef(0.0f - gate[i])) * up[i];
}

void CpuBackend::SiluMul(const float* gate, const float* up, int64_t n, float* y) {
  const auto range = LYNX_CPU_SELECT(options_.target, SiluMulRange);
  SplitRows(pool_, n, 1, [&](int64_t begin, int64_t end) {
    range(gate + begin, up + begin, end - begin, y + begin);
  });
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
