// SPDX-License-Identifier: Apache-2.0
// The CUDA back-end, which is a library of its own beside the program (lynx/cuda_plugin.h).
#pragma once

#include <memory>

#include "lynx/backend.h"
#include "lynx/status.h"

namespace lynx {

// kFailedPrecondition says in one line what is missing: the library, because this build has no
// nvcc; what the library itself needs; the driver; a GPU.
absl::Status CheckCudaDevice(int device);
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device, int num_threads);

}  // namespace lynx
