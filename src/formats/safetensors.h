// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8-byte header length | JSON header | tensor data.
// https://github.com/huggingface/safetensors
#pragma once

#include <vector>

#include "formats/mapped_file.h"
#include "formats/model_files.h"
#include "lynx/status.h"

namespace lynx {

// The tensors of one file in the order of their data, every offset checked. The views live as
// long as `file`. kInvalidArgument also for a tensor of a type other than F32, F16 and BF16.
absl::StatusOr<std::vector<TensorInfo>> ReadSafetensors(const MappedFile& file);

}  // namespace lynx
