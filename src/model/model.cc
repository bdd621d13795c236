// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <utility>

#include "formats/model_files.h"
#include "model/transformer.h"

namespace lynx {

absl::StatusOr<std::unique_ptr<Model>> Model::Load(
    const std::string& path, Backend& backend, int max_rows,
    std::function<void(const LoadProgress&)> progress, int max_model_len,
    const std::string& cache_directory) {
  LYNX_ASSIGN_OR_RETURN(std::shared_ptr<const ModelFiles> files, ModelFiles::Open(path));
  return Transformer::Create(std::move(files), backend,
                             {.max_rows = max_rows,
                              .max_model_len = max_model_len,
                              .progress = std::move(progress),
                              .cache_directory = cache_directory});
}

}  // namespace lynx
