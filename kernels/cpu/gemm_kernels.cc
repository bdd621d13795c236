// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm_kernels.h"

namespace lynx::cpu {

const GemmKernels& GemmKernelsFor(Target target) {
  switch (target) {
    case Target::kAvx2:
      return kGemmAvx2;
    case Target::kAvx512:
      return kGemmAvx512;
    case Target::kAvx512Vnni:
      return kGemmAvx512Vnni;
    default:
      return kGemmScalar;
  }
}

}  // namespace lynx::cpu
