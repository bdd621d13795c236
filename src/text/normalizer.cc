// SPDX-License-Identifier: Apache-2.0
#include "text/normalizer.h"

#include <uninorm.h>

#include <cstdlib>

#include "text/utf8.h"

namespace lynx {
namespace {

// Below U+0300 nothing combines, so such a text is in NFC already.
bool IsTriviallyNfc(std::string_view text) {
  for (unsigned char byte : text) {
    if (byte >= 0xCC) return false;
  }
  return true;
}

std::string ToForm(UnicodeForm form, std::string text) {
  if (text.empty() || (form == UnicodeForm::kNfc && IsTriviallyNfc(text))) return text;
  const uninorm_t forms[] = {UNINORM_NFC, UNINORM_NFD, UNINORM_NFKC, UNINORM_NFKD};
  size_t length = 0;
  uint8_t* result =
      u8_normalize(forms[static_cast<int>(form)], reinterpret_cast<const uint8_t*>(text.data()),
                   text.size(), nullptr, &length);
  if (result == nullptr) return text;
  text.assign(reinterpret_cast<char*>(result), length);
  std::free(result);
  return text;
}

std::string ReplaceAll(const Normalizer::Replace& replace, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;
  if (const auto* literal = std::get_if<std::string>(&replace.pattern)) {
    for (size_t at; (at = text.find(*literal, copied)) != text.npos;
         copied = at + literal->size()) {
      out.append(text.substr(copied, at - copied)).append(replace.content);
    }
  } else {
    const Regex& regex = std::get<Regex>(replace.pattern);
    Regex::Scratch scratch;
    size_t from = 0;
    while (auto match = regex.Search(text, from, &scratch)) {
      out.append(text.substr(copied, match->begin - copied)).append(replace.content);
      copied = match->end;
      from = match->end;
      if (match->end == match->begin) {
        if (from == text.size()) break;
        from += NextUtf8(text.substr(from)).length;
      }
    }
  }
  out.append(text.substr(copied));
  return out;
}

}  // namespace

void Normalizer::Add(Step step) { steps_.push_back(std::move(step)); }

std::string Normalizer::Apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      result = ToForm(*form, std::move(result));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!result.empty()) result.insert(0, prepend->text);
    } else {
      result = ReplaceAll(std::get<Replace>(step), result);
    }
  }
  return result;
}

}  // namespace lynx
