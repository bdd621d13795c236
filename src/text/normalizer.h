// SPDX-License-Identifier: Apache-2.0
// What a tokenizer does to a text before it splits it.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/regex.h"

namespace lynx {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Immutable; any thread. Texts are valid UTF-8.
class Normalizer {
 public:
  struct Prepend {
    std::string text;  // put before every text that is not empty
  };
  struct Replace {
    std::variant<std::string, Regex> pattern;
    std::string content;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  void Add(Step step);
  bool empty() const { return steps_.empty(); }
  std::string Apply(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lynx
