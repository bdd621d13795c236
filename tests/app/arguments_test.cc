// SPDX-License-Identifier: Apache-2.0
#include "app/arguments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace lynx {
namespace {

// What the program adds to CLI11's message, after a subcommand of a subcommand.
std::string SuggestionFor(std::vector<std::string> arguments) {
  CLI::App app;
  app.require_subcommand(1);
  CLI::App* inner = app.add_subcommand("bench")->add_subcommand("handoff");
  std::string anchor;
  inner->add_option("--anchor", anchor)->check(CLI::IsMember({"auto", "table"}));
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return Suggestion(app, e.what());
  }
  return "taken";
}

TEST(ArgumentsTest, AnUnknownFlagIsOneThatIsNearIt) {
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--anchor", "auto"}), "taken");
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--ancor", "auto"}), "; did you mean --anchor?");
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--ancor=auto"}), "; did you mean --anchor?");
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--elephant"}), "");
}

TEST(ArgumentsTest, AKnownFlagWithAWrongValueIsNoUnknownOne) {
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--anchor="}), "");
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--anchor", "x"}), "");
  EXPECT_EQ(SuggestionFor({"bench", "handoff", "--anchor"}), "");
}

TEST(ArgumentsTest, UnderscoresOfNamesAreDashes) {
  const char* const argv[] = {"lynx", "--max_num_seqs=a_b", "-tp", "2", "a_b"};
  EXPECT_EQ(NormalizeArguments(5, argv),
            (std::vector<std::string>{"--max-num-seqs=a_b", "--tensor-parallel-size", "2", "a_b"}));
}

}  // namespace
}  // namespace lynx
