// SPDX-License-Identifier: Apache-2.0
// CUDA's name for BF16, as far as library interfaces ask for it.
#pragma once

#include "lynx/types.h"

using __nv_bfloat16 = lynx::Bf16;
inline float __bfloat162float(__nv_bfloat16 v) { return lynx::ToFloat(v); }
inline __nv_bfloat16 __float2bfloat16(float v) { return lynx::ToBf16(v); }
