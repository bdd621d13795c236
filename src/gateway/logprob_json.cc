// SPDX-License-Identifier: Apache-2.0
#include "gateway/logprob_json.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "text/utf8.h"

namespace lynx {
namespace {

// Half a character has no text: its bytes are spelled out, so that two such tokens stay apart.
std::string TokenName(TokenId id, const LogprobStyle& style, const Tokenizer& tokenizer) {
  if (style.tokens_as_ids) return StrCat("token_id:", id);
  const std::string_view bytes = tokenizer.TokenBytes(id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (char c : bytes) absl::StrAppendFormat(&name, "\\x%02x", static_cast<uint8_t>(c));
  return name;
}

Json ByteList(std::string_view bytes) {
  Json list = Json::array();
  for (char c : bytes) list.push_back(static_cast<uint8_t>(c));
  return list;
}

std::span<const TokenLogprob> Top(const TokenOutput& token, int count) {
  return {token.top.data(), std::min(token.top.size(), static_cast<size_t>(std::max(count, 0)))};
}

Json ChatToken(TokenId id, float logprob, const LogprobStyle& style, const Tokenizer& tokenizer) {
  return {{"token", TokenName(id, style, tokenizer)},
          {"logprob", FiniteLogprob(logprob)},
          {"bytes", ByteList(tokenizer.TokenBytes(id))}};
}

}  // namespace

Json CompletionLogprobs(std::span<const PlacedToken> tokens, const LogprobStyle& style,
                        const Tokenizer& tokenizer) {
  Json names = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const PlacedToken& placed : tokens) {
    const TokenOutput& token = placed.token;
    const std::string name = TokenName(token.id, style, tokenizer);
    names.push_back(name);
    offsets.push_back(placed.text_offset);
    if (!placed.has_logprob) {
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    Json top = Json::object();
    for (const TokenLogprob& other : Top(token, style.num_top)) {
      top.emplace(TokenName(other.id, style, tokenizer), FiniteLogprob(other.logprob));
    }
    top[name] = FiniteLogprob(token.logprob);
    logprobs.push_back(FiniteLogprob(token.logprob));
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json ChatLogprobs(std::span<const PlacedToken> tokens, const LogprobStyle& style,
                  const Tokenizer& tokenizer) {
  Json content = Json::array();
  for (const PlacedToken& placed : tokens) {
    Json entry = ChatToken(placed.token.id, placed.token.logprob, style, tokenizer);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : Top(placed.token, style.num_top)) {
      top.push_back(ChatToken(other.id, other.logprob, style, tokenizer));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json PromptLogprobs(std::span<const std::optional<TokenOutput>> tokens, int num_top,
                    const Tokenizer& tokenizer) {
  const LogprobStyle style;
  Json list = Json::array();
  for (const std::optional<TokenOutput>& token : tokens) {
    if (!token) {
      list.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    auto add = [&](TokenId id, float logprob, int rank) {
      entry[std::to_string(id)] = {{"logprob", FiniteLogprob(logprob)},
                                   {"rank", rank},
                                   {"decoded_token", TokenName(id, style, tokenizer)}};
    };
    for (const TokenLogprob& other : Top(*token, num_top)) add(other.id, other.logprob, other.rank);
    add(token->id, token->logprob, token->rank);
    list.push_back(std::move(entry));
  }
  return list;
}

std::vector<PlacedToken> PlacePrompt(std::span<const TokenId> prompt,
                                     std::span<const std::optional<TokenOutput>> prompt_logprobs,
                                     std::string_view echo_text, const Tokenizer& tokenizer) {
  auto detokenizer = Detokenizer::Create(tokenizer, /*skip_special_tokens=*/false);
  std::vector<PlacedToken> placed(prompt.size());
  size_t offset = 0;
  for (size_t i = 0; i < prompt.size(); ++i) {
    placed[i].token.id = prompt[i];
    placed[i].text_offset = offset;
    placed[i].has_logprob = i < prompt_logprobs.size() && prompt_logprobs[i].has_value();
    if (placed[i].has_logprob) placed[i].token = *prompt_logprobs[i];
    // A BOS that the client did not write is no part of the text.
    const bool is_added_bos = i == 0 && tokenizer.IsSpecial(prompt[0]) &&
                              !echo_text.starts_with(tokenizer.TokenBytes(prompt[0]));
    if (!is_added_bos) offset += CountCharacters(detokenizer->Push(prompt[i]));
  }
  return placed;
}

}  // namespace lynx
