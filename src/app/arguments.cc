// SPDX-License-Identifier: Apache-2.0
#include "app/arguments.h"

#include <algorithm>
#include <utility>

#include "core/cluster_config.h"

namespace lynx {

std::vector<std::string> NormalizeArguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "-tp") argument = "--tensor-parallel-size";
    if (argument.starts_with("--")) {
      const size_t end = std::min(argument.find('='), argument.size());
      std::replace(argument.begin() + 2, argument.begin() + end, '_', '-');
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::string Suggestion(const CLI::App& app, const std::string& message) {
  const size_t begin = message.find("--");
  if (begin == std::string::npos) return "";
  const std::string unknown = message.substr(begin, message.find_first_of(" =:]", begin) - begin);
  std::vector<std::string> names;
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands()[0];
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  if (std::find(names.begin(), names.end(), unknown) != names.end()) return "";
  const std::string near = NearestWord(unknown, names);
  return near.empty() ? "" : "; did you mean " + near + "?";
}

}  // namespace lynx
