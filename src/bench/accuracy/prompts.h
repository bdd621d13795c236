// SPDX-License-Identifier: Apache-2.0
// Prompts of exact lengths from a corpus of real text, with facts to ask for.
//
// A prompt is a window of the corpus as a user's message, in the model's chat format if it has one,
// with an instruction behind it. Three sentences "The secret access code for CITY is DIGITS." stand
// at a quarter, a half and three quarters of the window. The same arguments give the same prompts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lynx/status.h"
#include "lynx/types.h"
#include "text/tokenizer.h"

namespace lynx {

struct NeedleQuestion {
  std::vector<TokenId> tail;  // takes the instruction's place; the answer's beginning is in it
  std::string code;           // what the answer must contain
};

struct AccuracyPrompt {
  std::vector<TokenId> tokens;
  int num_context = 0;                // tokens before the instruction
  std::vector<TokenId> continuation;  // the corpus after the window
  std::vector<NeedleQuestion> needles;
};

// The text around a user's message, up to where the answer begins.
struct ChatFrame {
  std::string before;
  std::string after;
  bool add_special_tokens = false;  // the tokenizer adds the beginning of text, not the frame
};

// What prompts are made of.
struct PromptSource {
  std::string corpus;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatFrame frame;
};

// All text files of a directory, in the order of their names; the frame of the model's chat
// template, or plain text when it has none. kNotFound when there is no text file.
absl::StatusOr<PromptSource> OpenPromptSource(const std::string& directory,
                                              const std::string& model_path);

inline constexpr int kNumNeedles = 3;
inline constexpr int kContinuationTokens = 65;

// Windows begin at equal distances; they overlap where the corpus is shorter than all together.
// kInvalidArgument when the corpus is shorter than one, or num_tokens leaves no room for a window.
absl::StatusOr<std::vector<AccuracyPrompt>> BuildAccuracyPrompts(const PromptSource& source,
                                                                 int num_tokens, int num_prompts);

}  // namespace lynx
