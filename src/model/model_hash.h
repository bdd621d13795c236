// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "formats/model_files.h"

namespace lynx {

// What two daemons compare to know that they serve the same model: xxHash64 of the configuration
// and of every tensor's name, type, shape and a sample of its bytes (the first, middle and last
// 4 KiB). Cheap, so it is meant to catch the wrong file, not a forged one.
uint64_t HashModel(const ModelFiles& files);

}  // namespace lynx
