// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace lynx {

// The arguments as CLI11 knows them: --max_num_seqs is --max-num-seqs, and -tp, vLLM's word, is
// more than the one letter of a short option.
std::vector<std::string> NormalizeArguments(int argc, const char* const* argv);

// "; did you mean --FLAG?" for CLI11's message about an unknown flag, else "". app: as parsed.
std::string Suggestion(const CLI::App& app, const std::string& message);

}  // namespace lynx
