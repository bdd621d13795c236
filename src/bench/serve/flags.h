// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "CLI/CLI.hpp"
#include "bench/serve/serve.h"

namespace lynx {

// The flags of `lynx bench serve`, named as those of `vllm bench serve`. options must outlive
// `command`.
void AddBenchServeFlags(CLI::App& command, BenchServeOptions* options);

}  // namespace lynx
