// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <utility>

#include "formats/model_files.h"
#include "model/transformer.h"

namespace lynx {

absl::StatusOr<std::unique_ptr<Model>> Model::Load(
    const std::string& path, Backend& backend, int max_rows,
    std::function<void(const LoadProgress&)> progress) {
  LYNX_ASSIGN_OR_RETURN(std::shared_ptr<const ModelFiles> files, ModelFiles::Open(path));
  return Transformer::Create(std::move(files), backend,
                             {.max_rows = max_rows, .progress = std::move(progress)});
}

}  // namespace lynx
