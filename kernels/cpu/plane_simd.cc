// SPDX-License-Identifier: Apache-2.0
// The plane format's block kernels for each instruction set, and the choice among them.
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/plane_page.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/plane_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/plane_decode-inl.h"
#include "kernels/cpu/plane_encode-inl.h"
#include "kernels/cpu/plane_ranges-inl.h"

HWY_BEFORE_NAMESPACE();
#if LYNX_SIMD_PASS
namespace lynx::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr PlaneBlockKernels kPlaneBlock = {KeyRange,    PageRanges,  GroupCodes,
                                           GroupBounds, EncodeBlock, DecodeBlock};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lynx::cpu
#endif  // LYNX_SIMD_PASS
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lynx::cpu {

const PlaneBlockKernels& PlaneBlockKernelsFor(Target target) {
  return LYNX_CPU_SELECT(target, kPlaneBlock);
}

}  // namespace lynx::cpu
#endif  // HWY_ONCE
