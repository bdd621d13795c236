// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope.h"

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/row_split.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {

// Replaces (a, b) by the rotated pair.
HWY_INLINE void Rotate(F16& a, F16& b, const F16& cos, const F16& sin) {
  const F16 rotated = NegFma(b, sin, Mul(a, cos));
  b = Fma(a, sin, Mul(b, cos));
  a = rotated;
}

void RopeHead(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  float* y = x + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    F16 a = LoadLanes(x + i), b = LoadLanes(y + i);
    Rotate(a, b, LoadLanes(cos + i), LoadLanes(sin + i));
    StoreLanes(a, x + i);
    StoreLanes(b, y + i);
  }
  if (const int tail = half - i; tail != 0) {
    F16 a = LoadLanes(x + i, tail), b = LoadLanes(y + i, tail);
    Rotate(a, b, LoadLanes(cos + i, tail), LoadLanes(sin + i, tail));
    StoreLanes(a, x + i, tail);
    StoreLanes(b, y + i, tail);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

void RopeHeadRef(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = std::fma(-b, sin[i], a * cos[i]);
    x[i + half] = std::fma(a, sin[i], b * cos[i]);
  }
}

void CpuBackend::Rope(float* x, int rows, int num_heads, int head_dim, const int32_t* positions,
                      const RopeTable& table) {
  const auto head = LYNX_CPU_SELECT(options_.target, RopeHead);
  SplitRows(pool_, rows, int64_t{num_heads} * head_dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t entry = int64_t{positions[r]} * (head_dim / 2);
      for (int h = 0; h < num_heads; ++h) {
        head(x + (r * num_heads + h) * head_dim, table.cos + entry, table.sin + entry, head_dim);
      }
    }
  });
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
