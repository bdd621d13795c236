// SPDX-License-Identifier: Apache-2.0
// The CUDA back-end, which is a library of its own beside the program (lynx/cuda_plugin.h).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "lynx/backend.h"
#include "lynx/collective.h"
#include "lynx/status.h"

namespace lynx {

// kFailedPrecondition says in one line what is missing: the library, because this build has no
// nvcc; what the library itself needs; the driver; a GPU.
absl::Status CheckCudaDevice(int device);
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device, int num_threads);
// For CUDA back-ends that share a model; each may then reach the others' memory.
absl::StatusOr<std::vector<std::unique_ptr<Collective>>> MakeCudaCollectives(
    std::span<Backend* const> backends, int64_t max_count);

}  // namespace lynx
