// SPDX-License-Identifier: Apache-2.0
#include "text/chat_prompt.h"

#include <string>

#include "text/ordered_json.h"
#include "text/utf8.h"

namespace lynx {
namespace {

// The strings of one request, parsed.
struct Inputs {
  OrderedJson messages;
  OrderedJson tools;
  OrderedJson kwargs;
};

absl::StatusOr<OrderedJson> Parse(const char* name, const std::string& text) {
  auto value = ParseOrderedJson(text);
  if (value.ok()) return value;
  return absl::InvalidArgumentError(
      absl::StrCat("validation: ", name, ": ", std::string(value.status().message())));
}

absl::StatusOr<Inputs> Parse(const ChatTemplateInput& input) {
  Inputs inputs;
  LYNX_ASSIGN_OR_RETURN(inputs.messages, Parse("messages", input.messages_json));
  LYNX_ASSIGN_OR_RETURN(inputs.tools, Parse("tools", input.tools_json));
  LYNX_ASSIGN_OR_RETURN(inputs.kwargs, Parse("chat_template_kwargs", input.kwargs_json));
  return inputs;
}

std::string Escaped(char32_t code_point) {
  std::string text = "\\u0000";
  constexpr char kDigits[] = "0123456789abcdef";
  for (int i = 0; i < 4; ++i) text[5 - i] = kDigits[(code_point >> (4 * i)) & 15];
  return text;
}

// Marks the characters to protect.
class Marker {
 public:
  Marker(const Tokenizer& tokenizer, std::string mark)
      : tokenizer_(tokenizer), mark_(std::move(mark)) {}

  bool has_marked() const { return has_marked_; }

  void Mark(OrderedJson* value) {
    if (value->is_string()) {
      *value = WithMarks(value->get_ref<const std::string&>());
    } else if (value->is_array()) {
      for (OrderedJson& element : *value) Mark(&element);
    } else if (value->is_object()) {
      OrderedJson marked = OrderedJson::object();
      for (auto& [key, member] : value->items()) {
        Mark(&member);
        marked[MarkedKey(key)] = std::move(member);
      }
      *value = std::move(marked);
    }
  }

 private:
  // Templates look keys up, so only a whole special token in one is marked: between two marks
  // nothing is the beginning or the end of a string.
  std::string MarkedKey(const std::string& key) {
    std::string marked = WithMarks(mark_ + key + mark_);
    return marked.substr(mark_.size(), marked.size() - 2 * mark_.size());
  }

  std::string WithMarks(const std::string& text) {
    std::string marked;
    size_t copied = 0;
    for (const ByteRange& range : tokenizer_.SpecialTextCharacters(text)) {
      marked.append(text, copied, range.end - copied).append(mark_);
      copied = range.end;
      has_marked_ = true;
    }
    if (copied == 0) return text;
    return marked.append(text, copied);
  }

  const Tokenizer& tokenizer_;
  const std::string mark_;
  bool has_marked_ = false;
};

// The rendered text without its marks.
struct Unmarked {
  std::string text;
  std::vector<ByteRange> protected_ranges;
};

// A mark may come as its JSON escape, when a template prints JSON in ASCII.
Unmarked TakeMarksOut(std::string_view rendered, std::string_view mark, std::string_view escaped) {
  Unmarked result;
  std::string& text = result.text;
  while (!rendered.empty()) {
    const bool is_mark = rendered.starts_with(mark);
    if (!is_mark && !rendered.starts_with(escaped)) {
      text.push_back(rendered[0]);
      rendered.remove_prefix(1);
      continue;
    }
    rendered.remove_prefix(is_mark ? mark.size() : escaped.size());
    if (text.empty()) continue;
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    auto& ranges = result.protected_ranges;
    if (ranges.empty() || ranges.back().end < text.size()) ranges.push_back({begin, text.size()});
  }
  return result;
}

// A code point that neither occurs in the input nor is spelled there: a noncharacter, or one for
// private use.
absl::StatusOr<char32_t> ChooseMark(const Inputs& inputs) {
  const std::string all = inputs.messages.dump() + inputs.tools.dump() + inputs.kwargs.dump();
  const auto is_free = [&](char32_t c) {
    std::string mark;
    AppendUtf8(c, &mark);
    return all.find(mark) == all.npos && all.find(Escaped(c)) == all.npos;
  };
  for (char32_t c = 0xFDD0; c <= 0xFDEF; ++c) {
    if (is_free(c)) return c;
  }
  for (char32_t c = 0xE000; c <= 0xE0FF; ++c) {
    if (is_free(c)) return c;
  }
  return absl::InvalidArgumentError("validation: the messages use up all private code points");
}

}  // namespace

absl::StatusOr<std::vector<TokenId>> EncodeChat(const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer,
                                                const ChatTemplateInput& input,
                                                bool add_special_tokens) {
  LYNX_ASSIGN_OR_RETURN(Inputs inputs, Parse(input));
  LYNX_ASSIGN_OR_RETURN(const char32_t code_point, ChooseMark(inputs));
  std::string mark;
  AppendUtf8(code_point, &mark);
  Marker marker(tokenizer, mark);
  for (OrderedJson* part : {&inputs.messages, &inputs.tools, &inputs.kwargs}) marker.Mark(part);
  if (!marker.has_marked()) {
    LYNX_ASSIGN_OR_RETURN(const std::string text, chat_template.Render(input));
    return tokenizer.Encode(text, {.add_special_tokens = add_special_tokens});
  }
  ChatTemplateInput marked_input = input;
  marked_input.messages_json = inputs.messages.dump();
  marked_input.tools_json = inputs.tools.dump();
  marked_input.kwargs_json = inputs.kwargs.dump();
  const auto rendered = chat_template.Render(marked_input);
  if (!rendered.ok()) {
    const std::string message(rendered.status().message());
    return absl::Status(rendered.status().code(),
                        TakeMarksOut(message, mark, Escaped(code_point)).text);
  }
  const Unmarked prompt = TakeMarksOut(*rendered, mark, Escaped(code_point));
  return tokenizer.Encode(prompt.text, {.add_special_tokens = add_special_tokens,
                                        .protected_ranges = prompt.protected_ranges});
}

}  // namespace lynx
