// SPDX-License-Identifier: Apache-2.0
// The machine's own limits, measured in the run that reports a speed, as the bound beside it.
#pragma once

#include <cstddef>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/thread_pool.h"

namespace lynx::cpu {

// Bytes per second of reading a buffer of this size on all threads, best of several passes.
double MeasureReadBandwidth(ThreadPool& pool, size_t bytes);

// Float32 FMA operations (2 flops each counted) per second on all threads, best of several passes.
double MeasureFmaPeak(ThreadPool& pool, Target target);

}  // namespace lynx::cpu
