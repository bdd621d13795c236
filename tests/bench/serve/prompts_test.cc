// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "text/tokenizer.h"

namespace lynx {
namespace {

TEST(RandomPromptsTest, LengthsAreWithinTheRatioAndSeedsDecide) {
  const RandomPromptOptions options = {
      .num_prompts = 200, .input_tokens = 10, .output_tokens = 100, .range_ratio = 0.25, .seed = 5};
  const auto prompts = RandomPrompts(options);
  std::set<int> inputs, outputs;
  std::set<std::string> texts;
  for (const ServePrompt& prompt : prompts) {
    EXPECT_EQ(std::count(prompt.text.begin(), prompt.text.end(), ' ') + 1, prompt.num_tokens);
    inputs.insert(prompt.num_tokens);
    outputs.insert(prompt.output_tokens);
    texts.insert(prompt.text);
  }
  EXPECT_EQ(inputs, (std::set<int>{7, 8, 9, 10, 11, 12, 13}));
  EXPECT_GE(*outputs.begin(), 75);
  EXPECT_LE(*outputs.rbegin(), 125);
  EXPECT_EQ(texts.size(), 200u);

  RandomPromptOptions other = options;
  EXPECT_EQ(RandomPrompts(other)[7].text, prompts[7].text);
  other.num_prompts = 8;  // a shorter run has the same beginning
  EXPECT_EQ(RandomPrompts(other)[7].text, prompts[7].text);
  other.seed = 6;
  EXPECT_NE(RandomPrompts(other)[7].text, prompts[7].text);
  other.num_distinct = 3;
  EXPECT_EQ(RandomPrompts(other)[7].text, RandomPrompts(other)[1].text);
}

TEST(RandomPromptsTest, EachWordIsOneTokenOfARealModel) {
  const std::string model = LYNX_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is not there";
  const auto tokenizer = Tokenizer::Load(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string_view word : RandomPromptWords()) {
    const auto ids = (*tokenizer)->Encode(" " + std::string(word), {.add_special_tokens = false});
    EXPECT_EQ(ids.size(), 1u) << word;
  }
}

TEST(ReadPromptsTest, OneJsonObjectALine) {
  const std::string path = testing::TempDir() + "bench_serve_prompts.jsonl";
  const auto read = [&](const std::string& text) {
    std::ofstream(path) << text;
    return ReadPrompts(path, 99);
  };
  const auto prompts = read("{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\", \"output_tokens\": 3}");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].output_tokens, 99);
  EXPECT_EQ((*prompts)[1].output_tokens, 3);
  EXPECT_EQ(TakeInTurn(*prompts, 3, 2)[0].text, "b");
  for (const char* bad : {"", "x", "{\"prompt\": 1}", "[]",
                          "{\"prompt\": \"a\"}\n{\"prompt\": \"a\", \"output_tokens\": 0}"}) {
    EXPECT_EQ(read(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(read("{\"prompt\": \"a\"}\n?").status().message()),
              testing::HasSubstr(":2:"));
}

}  // namespace
}  // namespace lynx
