// SPDX-License-Identifier: Apache-2.0
// Chat templates, rendered by Jinja2 itself (immutable sandbox) in an embedded Python on a thread
// of its own.
#pragma once

#include <memory>
#include <string>

#include "lynx/status.h"
#include "nlohmann/json_fwd.hpp"

namespace lynx {

struct ChatTemplateInput {
  std::string messages_json;  // JSON list
  std::string tools_json;     // JSON list or "null"
  std::string kwargs_json;    // JSON object: chat_template_kwargs, documents …
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::string now;  // ISO time for strftime_now; empty = the clock
};

// Any thread; renders are queued to the interpreter's thread, each bounded in time and output.
class ChatTemplate {
 public:
  // source: Jinja text. bos/eos: null pointer = undefined in the template.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(std::string source,
                                                              const std::string* bos_token,
                                                              const std::string* eos_token);
  virtual ~ChatTemplate() = default;
  // kInvalidArgument: "KIND: message" with KIND as in the reference's error kinds; for
  // raise_exception the template's own message. kUnavailable: the interpreter has too much to do.
  virtual absl::StatusOr<std::string> Render(const ChatTemplateInput& input) const = 0;

  // The model's own template: --chat-template, chat_template.jinja, tokenizer_config.json, GGUF
  // metadata. kNotFound when it has none.
  static absl::StatusOr<std::string> FindSource(const std::string& model_path);
};

}  // namespace lynx
