// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

// Checks a model, unless `quick`, and prints what it holds and the KV bytes per token for each
// codec.
absl::Status RunInspect(const std::string& path, bool list_tensors, bool quick);

}  // namespace lynx
