// SPDX-License-Identifier: Apache-2.0
// The flags of `lynx bench` and `lynx calibrate`.
#include "bench/commands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lynx {
namespace {

// Whether CLI11 takes these arguments.
bool Takes(std::vector<std::string> arguments) {
  CLI::App app;
  Commands commands;
  AddBenchCommands(app, &commands);
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError&) {
    return false;
  }
  return true;
}

TEST(BenchCommandsTest, NumbersAreNumbers) {
  const std::vector<std::vector<std::string>> flags = {
      {"bench", "incast", "--load", "0.5"},
      {"bench", "serve", "--request-rate", "5"},
      {"bench", "serve", "--burstiness", "5"},
      {"bench", "serve", "--random-range-ratio", "0.5"},
      {"bench", "serve", "--max-seconds", "5"},
      {"bench", "serve", "--temperature", "0.5"},
      {"bench", "serve", "--metric-percentiles", "50,99"},
      {"calibrate", "--model", "x", "--bits", "3.5"},
  };
  for (std::vector<std::string> arguments : flags) {
    EXPECT_TRUE(Takes(arguments)) << arguments[2];
    for (const char* bad : {"nan", "-nan", "-1", "x", ""}) {
      arguments.back() = bad;
      EXPECT_FALSE(Takes(arguments)) << arguments[arguments.size() - 2] << " " << bad;
    }
  }
  EXPECT_TRUE(Takes({"bench", "serve", "--request-rate", "inf"}));
  EXPECT_FALSE(Takes({"bench", "serve", "--request-rate", "0"}));
  EXPECT_FALSE(Takes({"bench", "serve", "--metric-percentiles", "50,nan"}));
}

}  // namespace
}  // namespace lynx
