// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/expect.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace lynx {

absl::StatusOr<ExpectedAnswers> ReadExpectedAnswers(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--expect: ", path, " is not a file"));
  }
  std::ifstream in(path);
  const auto saved = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  const auto& prompts = Member(saved, "prompts");
  const auto& texts = Member(saved, "generated_texts");
  const auto& errors = Member(saved, "errors");
  if (!prompts.is_array() || !texts.is_array() || !errors.is_array() ||
      prompts.size() != texts.size() || prompts.size() != errors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no result that --save-detailed wrote"));
  }
  ExpectedAnswers answers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const bool is_answer = prompts[i].is_string() && texts[i].is_string() && errors[i] == "";
    if (is_answer) answers.emplace(prompts[i], texts[i]);
  }
  return answers;
}

AnswerCheck CheckAnswers(std::span<const AnswerRecord> answers,
                         std::span<const ServePrompt> prompts, const ExpectedAnswers& expected) {
  AnswerCheck check;
  for (size_t i = 0; i < answers.size(); ++i) {
    const auto found = expected.find(prompts[i].text);
    if (found == expected.end() || !answers[i].ok()) continue;
    ++check.num_compared;
    check.num_different += found->second != answers[i].text;
  }
  return check;
}

}  // namespace lynx
