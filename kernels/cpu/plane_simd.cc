// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/plane_page.h"
namespace lynx::cpu {
const PlaneBlockKernels& PlaneBlockKernelsFor(Target) { return kPlaneBlockRef; }
}  // namespace lynx::cpu
