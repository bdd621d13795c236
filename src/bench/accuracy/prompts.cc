// SPDX-License-Identifier: Apache-2.0
#include "bench/accuracy/prompts.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "nlohmann/json.hpp"
#include "text/chat_template.h"

namespace lynx {
namespace {

constexpr const char* kInstructions[] = {"Explain the text above.", "Continue the text above."};
constexpr const char* kCities[] = {"Oslo",  "Lima",  "Cairo", "Paris",  "Kyoto", "Quito",
                                   "Delhi", "Turin", "Perth", "Ottawa", "Hanoi", "Porto"};
constexpr int kMinWindowTokens = 64;

using Tokens = std::vector<TokenId>;

void Append(Tokens& to, const Tokens& from) { to.insert(to.end(), from.begin(), from.end()); }

class PromptBuilder {
 public:
  explicit PromptBuilder(const PromptSource& source)
      : tokenizer_(*source.tokenizer), frame_(source.frame), corpus_(Plain(source.corpus)) {
    head_ = tokenizer_.Encode(frame_.before, {.add_special_tokens = frame_.add_special_tokens});
  }

  absl::StatusOr<AccuracyPrompt> Build(int num_tokens, int index, int num_prompts) const {
    std::mt19937 random(index);
    std::string cities[kNumNeedles], codes[kNumNeedles];
    Tokens needles[kNumNeedles];
    int fixed = static_cast<int>(head_.size());
    for (int i = 0; i < kNumNeedles; ++i) {
      cities[i] = kCities[random() % 4 * kNumNeedles + i];
      codes[i] = std::to_string(10000 + random() % 90000);
      needles[i] = Plain(absl::StrCat("\n", Fact(cities[i]), " ", codes[i], ".\n"));
      fixed += static_cast<int>(needles[i].size());
    }
    const Tokens tail = Tail(absl::StrCat("\n\n", kInstructions[index % 2]), "");
    const int window = num_tokens - fixed - static_cast<int>(tail.size());
    LYNX_RETURN_IF_ERROR(Check(num_tokens, window));
    const size_t begin = WindowBegin(window, index, num_prompts);

    AccuracyPrompt prompt{.tokens = head_};
    size_t at = begin;
    for (int i = 0; i <= kNumNeedles; ++i) {
      const size_t end = begin + static_cast<size_t>(window) * (i + 1) / (kNumNeedles + 1);
      prompt.tokens.insert(prompt.tokens.end(), corpus_.begin() + at, corpus_.begin() + end);
      at = end;
      if (i < kNumNeedles) Append(prompt.tokens, needles[i]);
    }
    prompt.num_context = static_cast<int>(prompt.tokens.size());
    Append(prompt.tokens, tail);
    prompt.continuation.assign(corpus_.begin() + at, corpus_.begin() + at + kContinuationTokens);
    for (int i = 0; i < kNumNeedles; ++i) {
      const std::string question =
          absl::StrCat("\n\nWhat is the secret access code for ", cities[i], "?");
      prompt.needles.push_back({.tail = Tail(question, Fact(cities[i])), .code = codes[i]});
    }
    return prompt;
  }

 private:
  static std::string Fact(const std::string& city) {
    return absl::StrCat("The secret access code for ", city, " is");
  }
  Tokens Plain(const std::string& text) const {
    return tokenizer_.Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  }
  // From the end of the window to where the answer begins, and the answer's first words.
  Tokens Tail(const std::string& question, const std::string& answer) const {
    return tokenizer_.Encode(question + frame_.after + answer, {.add_special_tokens = false});
  }
  absl::Status Check(int num_tokens, int window) const {
    if (window < kMinWindowTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-tokens: ", num_tokens, " tokens leave ", window, " for the text"));
    }
    if (corpus_.size() < static_cast<size_t>(window) + kContinuationTokens) {
      return absl::InvalidArgumentError(absl::StrCat("the corpus has ", corpus_.size(),
                                                     " tokens, a prompt of ", num_tokens, " needs ",
                                                     window + kContinuationTokens));
    }
    return absl::OkStatus();
  }
  size_t WindowBegin(int window, int index, int num_prompts) const {
    const size_t last = corpus_.size() - kContinuationTokens - window;
    return num_prompts == 1 ? last / 2 : last * index / (num_prompts - 1);
  }

  const Tokenizer& tokenizer_;
  const ChatFrame& frame_;
  const Tokens corpus_;
  Tokens head_;
};

absl::StatusOr<ChatFrame> FindChatFrame(const std::string& model_path, const Tokenizer& tokenizer) {
  const absl::StatusOr<std::string> source = ChatTemplate::FindSource(model_path);
  if (source.status().code() == absl::StatusCode::kNotFound) {
    return ChatFrame{.before = "", .after = "\n", .add_special_tokens = true};
  }
  LYNX_RETURN_IF_ERROR(source.status());
  const std::string bos = tokenizer.bos_token(), eos = tokenizer.eos_token();
  LYNX_ASSIGN_OR_RETURN(const auto chat_template,
                        ChatTemplate::Create(*source, tokenizer.bos_id() < 0 ? nullptr : &bos,
                                             tokenizer.eos_id() < 0 ? nullptr : &eos));
  const std::string mark = "THE-MESSAGE";
  const nlohmann::json messages = {{{"role", "user"}, {"content", mark}}};
  LYNX_ASSIGN_OR_RETURN(
      const std::string text,
      chat_template->Render(
          {.messages_json = messages.dump(), .tools_json = "null", .kwargs_json = "{}"}));
  const size_t at = text.find(mark);
  if (at == std::string::npos) {
    return absl::InvalidArgumentError("the chat template leaves out the user's message");
  }
  return ChatFrame{.before = text.substr(0, at), .after = text.substr(at + mark.size())};
}

absl::StatusOr<std::string> ReadCorpus(const std::string& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "--corpus: no .txt file in ", directory,
        "; pass a directory of text files, such as bench/prompts of Lynx's source tree"));
  }
  std::sort(files.begin(), files.end());
  std::ostringstream text;
  for (const auto& file : files) text << std::ifstream(file).rdbuf() << "\n\n";
  return text.str();
}

}  // namespace

absl::StatusOr<PromptSource> OpenPromptSource(const std::string& directory,
                                              const std::string& model_path) {
  PromptSource source;
  LYNX_ASSIGN_OR_RETURN(source.corpus, ReadCorpus(directory));
  LYNX_ASSIGN_OR_RETURN(source.tokenizer, Tokenizer::Load(model_path));
  LYNX_ASSIGN_OR_RETURN(source.frame, FindChatFrame(model_path, *source.tokenizer));
  return source;
}

absl::StatusOr<std::vector<AccuracyPrompt>> BuildAccuracyPrompts(const PromptSource& source,
                                                                 int num_tokens, int num_prompts) {
  const PromptBuilder builder(source);
  std::vector<AccuracyPrompt> prompts;
  for (int i = 0; i < num_prompts; ++i) {
    LYNX_ASSIGN_OR_RETURN(AccuracyPrompt prompt, builder.Build(num_tokens, i, num_prompts));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace lynx
