// SPDX-License-Identifier: Apache-2.0
// Whole pages on top of the block kernels (plane_block.h). The walk over a page is the same for
// every instruction set.
#pragma once

#include "kernels/common/page_tiles.h"
#include "kernels/cpu/plane_block.h"
#include "kernels/cpu/target.h"
#include "lynx/plane_format.h"

namespace lynx::cpu {

// The block kernels of a target that this processor has.
const PlaneBlockKernels& PlaneBlockKernelsFor(Target target);

void EncodePlanes(const PlaneBlockKernels& kernels, const PlaneEncodeParams& params);
void DecodePlanes(const PlaneBlockKernels& kernels, const PlaneDecodeParams& params);

}  // namespace lynx::cpu
