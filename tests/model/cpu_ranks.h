// SPDX-License-Identifier: Apache-2.0
// A model divided among CPU back-ends of this process.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/thread_collective.h"
#include "model/tensor_parallel.h"

namespace lynx {

struct CpuRanks {
  std::vector<std::unique_ptr<cpu::CpuBackend>> backends;
  std::unique_ptr<Model> model;

  // options: of each rank's back-end. Null when this processor lacks the target.
  static absl::StatusOr<CpuRanks> Load(const std::string& path, int num_ranks,
                                       const cpu::CpuBackend::Options& options, int max_rows) {
    CpuRanks ranks;
    std::vector<Backend*> backends;
    for (int r = 0; r < num_ranks; ++r) {
      ranks.backends.push_back(cpu::CpuBackend::Create(options));
      backends.push_back(ranks.backends.back().get());
      if (backends.back() == nullptr) return absl::UnavailableError("no such target here");
    }
    LYNX_ASSIGN_OR_RETURN(
        ranks.model, LoadTensorParallel(
                         path, backends,
                         [=](int64_t) { return cpu::MakeThreadCollectives(num_ranks); }, max_rows));
    return ranks;
  }
};

}  // namespace lynx
