// SPDX-License-Identifier: Apache-2.0
// From messages to token ids. What users write never becomes a control token: the template's own
// markers are parsed as special tokens, the same text inside a message, tool or keyword argument
// stays ordinary text.
#pragma once

#include <vector>

#include "lynx/status.h"
#include "lynx/types.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace lynx {

// Renders and encodes, without adding BOS or EOS, since the template writes what the model wants,
// unless `add_special_tokens` asks for those that the tokenizer puts around any text. The ids are
// those of the plainly rendered text, except where a string of `input` holds a special token's
// text, whole or the end of one it is joined to. Roles are strings like all others; a template that
// builds a marker around the role still gets its marker.
//
// How: the first character of such text is followed by a private code point that occurs nowhere in
// the input; the template carries it along; it is taken out of the rendered text, and the character
// before it may not be part of a special token.
//
// kInvalidArgument "KIND: message" as ChatTemplate::Render.
absl::StatusOr<std::vector<TokenId>> EncodeChat(const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer,
                                                const ChatTemplateInput& input,
                                                bool add_special_tokens = false);

}  // namespace lynx
