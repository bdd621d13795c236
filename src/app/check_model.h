// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lynx/status.h"

namespace lynx {

// Everything that can be wrong with a model on disk, found before any daemon is started: reads all
// metadata, the tokenizer and every weight. One line "FILE: FIELD: reason".
absl::Status CheckModel(const std::string& path);

}  // namespace lynx
