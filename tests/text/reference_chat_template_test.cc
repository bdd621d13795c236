// SPDX-License-Identifier: Apache-2.0
// Chat templates against the reference vectors (transformers' apply_chat_template, exact).
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "text/chat_template.h"

namespace lynx {
namespace {

using nlohmann::ordered_json;

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<std::string> RenderCase(const std::string& folder, const ordered_json& row) {
  const std::string source = row.contains("template")
                                 ? row["template"].get<std::string>()
                                 : ReadText(folder + row["template_file"].get<std::string>());
  const auto text_of = [&](const char* key) {
    return row[key].is_null() ? std::string() : row[key].get<std::string>();
  };
  const std::string bos = text_of("bos_token");
  const std::string eos = text_of("eos_token");
  auto chat_template = ChatTemplate::Create(source, row["bos_token"].is_null() ? nullptr : &bos,
                                            row["eos_token"].is_null() ? nullptr : &eos);
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)
      ->Render({.messages_json = row["messages"].dump(),
                .tools_json = row["tools"].dump(),
                .kwargs_json = row["kwargs"].dump(),
                .add_generation_prompt = row["add_generation_prompt"].get<bool>(),
                .now = text_of("now")});
}

void CheckError(const ordered_json& row, const absl::StatusOr<std::string>& rendered) {
  ASSERT_FALSE(rendered.ok()) << *rendered;
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(rendered.status().message());
  const auto kind = row["error"]["kind"].get<std::string>();
  EXPECT_EQ(message.substr(0, message.find(':')), kind) << message;
  if (kind == "raise_exception") {
    EXPECT_EQ(message, kind + ": " + row["error"]["message"].get<std::string>());
  }
}

int CheckCases(const std::string& folder) {
  std::ifstream in(folder + "cases.jsonl");
  int num_cases = 0;
  for (std::string line; std::getline(in, line); ++num_cases) {
    const ordered_json row = ordered_json::parse(line);
    SCOPED_TRACE(row["name"].get<std::string>());
    const auto rendered = RenderCase(folder, row);
    if (row.contains("error")) {
      CheckError(row, rendered);
      continue;
    }
    EXPECT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(rendered.value_or(""), row["expected"].get<std::string>());
  }
  return num_cases;
}

TEST(ReferenceChatTemplate, EqualsEveryVector) {
  const std::string folder = LYNX_SHARED_DIR "/reference/chat_template/";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no reference vectors at " << folder;
  EXPECT_EQ(CheckCases(folder), 305);
}

TEST(ReferenceChatTemplate, EqualsTheVectorsInThisTree) {
  EXPECT_EQ(CheckCases(LYNX_SOURCE_DIR "/tests/data/text/chat_template/"), 24);
}

}  // namespace
}  // namespace lynx
