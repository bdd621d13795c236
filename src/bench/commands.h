// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "app/command.h"

namespace lynx {

// `lynx bench ...` and `lynx calibrate`.
void AddBenchCommands(CLI::App& app, Commands* commands);

}  // namespace lynx
