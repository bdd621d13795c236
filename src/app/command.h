// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program: each brings its flags and what it does with them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "lynx/status.h"

namespace lynx {

struct Command {
  std::string name;  // in messages
  CLI::App* app;
  std::function<absl::Status()> run;  // when the command was named
};
using Commands = std::vector<Command>;

}  // namespace lynx
