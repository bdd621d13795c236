// SPDX-License-Identifier: Apache-2.0
// What a JSON file must not hold, whatever its keys mean.
#include "formats/json_object.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lynx {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto object = JsonObject::Parse(text, "x.json");
  EXPECT_EQ(object.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(object.status().message());
}

TEST(JsonObjectTest, SaysWhatIsWrong) {
  EXPECT_EQ(ErrorOf(""), "x.json: JSON: empty");
  EXPECT_EQ(ErrorOf("[1]"), "x.json: JSON: not an object");
  for (const char* text : {"{", "{\"a\"}", "{} {}", "{\"a\": 1e999}", "{\"\xff\": 1}"}) {
    EXPECT_EQ(ErrorOf(text), "x.json: JSON: syntax error") << text;
  }
}

TEST(JsonObjectTest, AKeyMayComeOnceInAnObject) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "b": {"c": 1, "c": 2}})"), HasSubstr("duplicate key c"));
  EXPECT_TRUE(JsonObject::Parse(R"({"a": {"a": 1}, "b": [{"a": 1}, {"a": 2}]})", "x.json").ok());
}

TEST(JsonObjectTest, NestingEndsSomewhere) {
  const auto nested = [](size_t depth) {
    return R"({"a": )" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_TRUE(JsonObject::Parse(nested(60), "x.json").ok());
  EXPECT_EQ(ErrorOf(nested(70)), "x.json: JSON: nested too deeply");
  EXPECT_EQ(ErrorOf(nested(1 << 20)), "x.json: JSON: nested too deeply");
}

// A parse that takes the square of their number would take minutes.
TEST(JsonObjectTest, ManyObjectsInOneParent) {
  std::string text = R"({"a": [{})";
  for (int i = 0; i < 500'000; ++i) text += ",{}";
  const auto object = JsonObject::Parse(text + "]}", "x.json");
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->json()["a"].size(), 500'001u);
}

}  // namespace
}  // namespace lynx
