// SPDX-License-Identifier: Apache-2.0
#include "formats/json_guard.h"

#include <gtest/gtest.h>

#include <string>

namespace lynx {
namespace {

std::string ErrorOf(const std::string& text, const JsonLimits& limits) {
  return std::string(CheckJson(text, limits).message());
}

TEST(JsonGuardTest, CountsObjectsAndLists) {
  const JsonLimits limits = {.max_depth = 3};
  for (const char* text : {"1", "[[[1]]]", R"({"a": [{"b": "[[{{"}], "c": [[]]})"}) {
    EXPECT_EQ(ErrorOf(text, limits), "") << text;
  }
  for (const char* text : {"[[[[1]]]]", R"([{"a": {"b": {}}}])", "[[[["}) {
    EXPECT_EQ(ErrorOf(text, limits), "nested too deeply") << text;
  }
}

TEST(JsonGuardTest, CountsTheMembersOfEachObject) {
  const JsonLimits limits = {.max_depth = 9, .max_num_members = 2};
  EXPECT_EQ(ErrorOf(R"({"a": {"b": 1, "c": ":::"}, "d": [{"e": 1}, {"f": 1}, {"g": 1}]})", limits),
            "");
  EXPECT_EQ(ErrorOf(R"({"a": {"b": {}, "c": [], "d": 1}})", limits),
            "an object has more than 2 members");
}

TEST(JsonGuardTest, ComparesTheKeysOfAnObject) {
  const char* const twice = R"({"a": [{"b": 1}, {"b": 1}], "c": {"b": 1, "\u0062": 2}})";
  EXPECT_EQ(ErrorOf(twice, {.max_depth = 9, .unique_keys = true}), "duplicate key b");
  EXPECT_EQ(ErrorOf(twice, {.max_depth = 9}), "");
}

TEST(JsonGuardTest, LeavesSyntaxToTheParser) {
  const JsonLimits limits = {.max_depth = 9, .max_num_members = 1, .unique_keys = true};
  for (const char* text :
       {"", "{", "nil", "[1e999]", "{\"\xff\": 1}", "[1,] {\"a\": 1, \"b\": 2}"}) {
    EXPECT_EQ(ErrorOf(text, limits), "") << text;
  }
  EXPECT_EQ(ErrorOf(R"({"a": 1, "b": 2, nil)", limits), "an object has more than 1 members");
}

}  // namespace
}  // namespace lynx
