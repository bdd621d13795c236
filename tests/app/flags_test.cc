// SPDX-License-Identifier: Apache-2.0
#include "app/flags.h"

#include <gtest/gtest.h>

#include <string>

namespace lynx {
namespace {

// The effective kv.resident, or what is wrong.
std::string ResidentFrom(const std::string& arguments) {
  CLI::App app;
  ConfigFlags flags(app, {.engine = true});
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  const auto config = flags.Resolve();
  return config.ok() ? config->kv.resident : std::string(config.status().message());
}

TEST(ConfigFlagsTest, ResidentIsOneOfItsChoices) {
  EXPECT_EQ(ResidentFrom(""), "bf16");
  EXPECT_EQ(ResidentFrom("--kv-resident exact"), "exact");
  EXPECT_EQ(ResidentFrom("--kv-resident 8bit"), "8bit");
  EXPECT_EQ(ResidentFrom("--kv-resident 4bit"), "--kv-resident: 4bit not in {bf16,exact,8bit}");
}

}  // namespace
}  // namespace lynx
