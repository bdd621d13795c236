// SPDX-License-Identifier: Apache-2.0
// Marks small functions that host code and CUDA kernels share. constexpr functions need no mark.
#pragma once

#ifdef __CUDACC__
#define LYNX_HOST_DEVICE __host__ __device__
#else
#define LYNX_HOST_DEVICE
#endif
