// SPDX-License-Identifier: Apache-2.0
// A model whose layers are divided among several back-ends (Megatron-LM's scheme: heads and inner
// channels by rank, two sums a layer).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lynx/backend.h"
#include "lynx/collective.h"
#include "lynx/status.h"
#include "model/model.h"

namespace lynx {

using Collectives = std::vector<std::unique_ptr<Collective>>;  // by rank

// Rank r's part on backends[r], driven by a thread of its own (rank 0's by the caller of Forward).
// make_collectives makes the group of as many ranks, for sums of up to max_count numbers. The
// back-ends outlive the model and compute in the same way.
//
// The model's hash, config and KV layout are those of the undivided model, so daemons with
// different degrees agree. Its logits are bit for bit the same in every run with the same degree,
// and close to other degrees' (docs/numerics.md).
//
// kInvalidArgument, naming the sizes, when the model cannot be divided so; else as Model::Load.
absl::StatusOr<std::unique_ptr<Model>> LoadTensorParallel(
    const std::string& path, std::span<Backend* const> backends,
    const std::function<absl::StatusOr<Collectives>(int64_t max_count)>& make_collectives,
    int max_rows, std::function<void(const LoadProgress&)> progress = nullptr,
    int max_model_len = 0, const std::string& cache_directory = "");

}  // namespace lynx
