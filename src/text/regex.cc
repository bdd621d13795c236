// SPDX-License-Identifier: Apache-2.0
#include "text/regex.h"

#include <oniguruma.h>

#include <mutex>

namespace lynx {
namespace {

// Oniguruma's own tables are process-wide and want to be set up once, before the first pattern.
void InitializeOniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

}  // namespace

Regex::Scratch::Scratch() : region_(onig_region_new()) {}
Regex::Scratch::~Scratch() { onig_region_free(region_, 1); }

void Regex::Free::operator()(re_pattern_buffer* regex) const { onig_free(regex); }

absl::StatusOr<Regex> Regex::Create(const std::string& pattern) {
  InitializeOniguruma();
  const auto* begin = reinterpret_cast<const OnigUChar*>(pattern.data());
  regex_t* regex = nullptr;
  OnigErrorInfo info;
  const int code = onig_new(&regex, begin, begin + pattern.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_RUBY, &info);
  if (code != ONIG_NORMAL) {
    OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
    const int length = onig_error_code_to_str(message, code, &info);
    return absl::InvalidArgumentError(
        absl::StrCat("regex: ", std::string(reinterpret_cast<char*>(message), length)));
  }
  return Regex(regex);
}

std::optional<Regex::Match> Regex::Search(std::string_view text, size_t from,
                                          Scratch* scratch) const {
  const auto* begin = reinterpret_cast<const OnigUChar*>(text.data());
  const auto* end = begin + text.size();
  if (onig_search(regex_.get(), begin, end, begin + from, end, scratch->region_, ONIG_OPTION_NONE) <
      0) {
    return std::nullopt;
  }
  return Match{static_cast<size_t>(scratch->region_->beg[0]),
               static_cast<size_t>(scratch->region_->end[0])};
}

}  // namespace lynx
