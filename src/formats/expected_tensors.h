// SPDX-License-Identifier: Apache-2.0
// Which tensors a model must have, of which shape.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/model_description.h"
#include "formats/model_files.h"

namespace lynx {

struct TensorCheck {
  const ModelDescription& description;
  std::function<const TensorInfo*(const std::string&)> find;  // by Hugging Face name
  std::function<std::string(const std::string&)> label;       // the file's own name for it
  std::string file;                                           // where a missing one is missed
  std::string config_file;                                    // where the shapes come from
};

// kInvalidArgument naming the first tensor that is missing, has another shape, is not wanted (a
// bias that the configuration denies) or is of a type that its place cannot have.
absl::Status CheckTensors(const TensorCheck& check);

}  // namespace lynx
