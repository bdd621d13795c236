// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.h"

#include <unictype.h>

#include <optional>

#include "text/utf8.h"

namespace lynx {
namespace {

struct Part {
  std::string_view text;
  bool is_match = false;
};

// Finds the matches of one step's pattern from left to right.
class Finder {
 public:
  Finder(const PreTokenizer::Step& step, std::string_view text) : step_(step), text_(text) {}

  std::optional<Regex::Match> Next(size_t from) {
    if (const auto* regex = std::get_if<Regex>(&step_.pattern)) {
      auto match = regex->Search(text_, from, &scratch_);
      while (match && match->begin == match->end && match->end < text_.size()) {
        match =
            regex->Search(text_, match->end + NextUtf8(text_.substr(match->end)).length, &scratch_);
      }
      return match && match->begin < match->end ? match : std::nullopt;
    }
    if (const auto* literal = std::get_if<std::string>(&step_.pattern)) {
      const size_t at = text_.find(*literal, from);
      if (at == text_.npos) return std::nullopt;
      return Regex::Match{at, at + literal->size()};
    }
    return NextDigit(from);
  }

 private:
  std::optional<Regex::Match> NextDigit(size_t from) const {
    for (int length = 0; from < text_.size(); from += length) {
      const char32_t c = DecodeUtf8(text_.substr(from), &length);
      const bool is_number =
          c < 0x80 ? c >= '0' && c <= '9' : uc_is_general_category_withtable(c, UC_CATEGORY_MASK_N);
      if (is_number) return Regex::Match{from, from + length};
    }
    return std::nullopt;
  }

  const PreTokenizer::Step& step_;
  std::string_view text_;
  Regex::Scratch scratch_;
};

void FindParts(const PreTokenizer::Step& step, std::string_view text, std::vector<Part>* parts) {
  Finder finder(step, text);
  size_t done = 0;
  while (done < text.size()) {
    const auto match = finder.Next(done);
    const size_t begin = match ? match->begin : text.size();
    if (begin > done) parts->push_back({text.substr(done, begin - done), step.invert});
    if (!match) break;
    parts->push_back({text.substr(begin, match->end - begin), !step.invert});
    done = match->end;
  }
}

// Neighbours lie side by side in one text, so joining them is arithmetic.
std::string_view Join(std::string_view left, std::string_view right) {
  return {left.data(), left.size() + right.size()};
}

void Arrange(SplitBehavior behavior, const std::vector<Part>& parts,
             std::vector<std::string_view>* out) {
  bool previous_is_match = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool first = i == 0;
    switch (behavior) {
      case SplitBehavior::kIsolated:
        out->push_back(part.text);
        break;
      case SplitBehavior::kRemoved:
        if (!part.is_match) out->push_back(part.text);
        break;
      case SplitBehavior::kContiguous:
        if (!first && part.is_match == previous_is_match) {
          out->back() = Join(out->back(), part.text);
        } else {
          out->push_back(part.text);
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (!first && part.is_match && !previous_is_match) {
          out->back() = Join(out->back(), part.text);
        } else {
          out->push_back(part.text);
        }
        break;
      case SplitBehavior::kMergedWithNext:
        if (!first && previous_is_match && !part.is_match) {
          out->back() = Join(out->back(), part.text);
        } else {
          out->push_back(part.text);
        }
        break;
    }
    previous_is_match = part.is_match;
  }
}

}  // namespace

void PreTokenizer::Add(Step step) { steps_.push_back(std::move(step)); }

std::vector<std::string_view> PreTokenizer::Split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  std::vector<Part> parts;
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    next.reserve(pieces.size());
    for (std::string_view piece : pieces) {
      parts.clear();
      FindParts(step, piece, &parts);
      Arrange(step.behavior, parts, &next);
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace lynx
