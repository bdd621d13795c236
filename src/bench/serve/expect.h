// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>

#include "bench/serve/answer.h"
#include "bench/serve/prompts.h"

namespace lynx {

using ExpectedAnswers = std::map<std::string, std::string>;  // by prompt

// The complete answers of an earlier run. path: a result with details.
absl::StatusOr<ExpectedAnswers> ReadExpectedAnswers(const std::string& path);

struct AnswerCheck {
  int num_compared = 0;
  int num_different = 0;
};

// Compares the completed answers to prompts that have an expected one; others are passed over.
// answers[i] belongs to prompts[i].
AnswerCheck CheckAnswers(std::span<const AnswerRecord> answers,
                         std::span<const ServePrompt> prompts, const ExpectedAnswers& expected);

}  // namespace lynx
