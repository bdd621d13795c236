// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program: each brings its flags and what it does with them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "lynx/status.h"

namespace lynx {

// A number from min to max; unlike CLI::Range it refuses NaN.
inline CLI::Validator NumberIn(double min, double max) {
  return CLI::Validator(
      [min, max](const std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return within ? std::string()
                      : absl::StrCat(text, " is not a number from ", min, " to ", max);
      },
      "NUMBER");
}

struct Command {
  std::string name;  // in messages
  CLI::App* app;
  std::function<absl::Status()> run;  // when the command was named
};
using Commands = std::vector<Command>;

}  // namespace lynx
