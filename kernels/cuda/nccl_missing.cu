// SPDX-License-Identifier: Apache-2.0
// What is built where nccl.h is not found.
#include <cstdio>

#include "kernels/cuda/nccl_collective.h"

namespace lynx::cuda {

std::vector<std::unique_ptr<Collective>> MakeNcclCollectives(std::span<const NcclRank>, int64_t,
                                                             char* error, size_t error_bytes) {
  std::snprintf(error, error_bytes, "this build has no NCCL (nccl.h was not found)");
  return {};
}

}  // namespace lynx::cuda
