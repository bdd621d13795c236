// SPDX-License-Identifier: Apache-2.0
// Prompts with the greedy continuation of another implementation, and how to compare with it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lynx/types.h"

namespace lynx {

struct ReferenceCase {
  std::string name;
  std::vector<TokenId> prompt_ids;
  std::vector<TokenId> greedy_ids;
  std::vector<float> greedy_margin;  // logit of the first minus that of the second choice
  std::vector<TokenId> greedy_runner_up;
  nlohmann::json json;  // everything else
};

inline std::vector<ReferenceCase> ReadCases(const std::string& path) {
  std::ifstream file(path);
  std::vector<ReferenceCase> cases;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    cases.push_back({.name = json.value("name", absl::StrCat("prompt ", cases.size())),
                     .prompt_ids = json["prompt_ids"],
                     .greedy_ids = json["greedy_ids"],
                     .greedy_margin = json["greedy_margin"],
                     .greedy_runner_up = json["greedy_runner_up"],
                     .json = json});
  }
  return cases;
}

// The logits of the last prompt position: the 20 best, their logsumexp and their mean.
inline void ExpectLastRow(const ReferenceCase& expected, std::span<const float> logits,
                          float logit_error) {
  const auto& top = expected.json["top20"];
  for (size_t i = 0; i < top["ids"].size(); ++i) {
    EXPECT_NEAR(logits[top["ids"][i].get<int>()], top["logits"][i].get<float>(), logit_error)
        << "rank " << i;
  }
  double sum = 0, exp_sum = 0;
  for (float logit : logits) {
    sum += logit;
    exp_sum += std::exp(static_cast<double>(logit));
  }
  EXPECT_NEAR(std::log(exp_sum), expected.json["logsumexp"].get<double>(), logit_error);
  EXPECT_NEAR(sum / logits.size(), expected.json["logit_mean"].get<double>(), logit_error);
}

// Two correct engines may part where the reference's margin is below their logit error, and then
// only to the runner-up; whatever follows is another text.
inline void ExpectGreedyPath(const ReferenceCase& expected, const std::vector<TokenId>& ids,
                             float logit_error) {
  ASSERT_EQ(ids.size(), expected.greedy_ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == expected.greedy_ids[i]) continue;
    EXPECT_LT(expected.greedy_margin[i], logit_error) << expected.name << " step " << i;
    EXPECT_EQ(ids[i], expected.greedy_runner_up[i]) << expected.name << " step " << i;
    return;
  }
}

}  // namespace lynx
