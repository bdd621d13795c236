// SPDX-License-Identifier: Apache-2.0
// The fields that carry text: `prompt` and `messages`.
#pragma once

#include "gateway/openai_request.h"
#include "text/ordered_json.h"

namespace lynx {

// A string, a list of strings, a list of ids or a list of lists of ids; nothing empty or mixed.
MaybeError ParsePrompt(const Json& prompt, const RequestRules& rules,
                       std::vector<OpenAiRequest::Prompt>* out);

// Checks `messages` and brings them into the form that templates expect: content as one string
// (text parts joined by a newline; empty beside tool calls), the arguments of tool calls as
// objects, both names of reasoning text.
MaybeError ParseMessages(OrderedJson messages, const GatewayLimits& limits, OpenAiRequest* out);

// Checks the shape of `tools` and keeps them for the template.
MaybeError ParseTools(const OrderedJson& tools, OpenAiRequest* out);

}  // namespace lynx
