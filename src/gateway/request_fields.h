// SPDX-License-Identifier: Apache-2.0
// The table of every request field: where it is valid, its type, its bounds, and what it sets.
#pragma once

#include <span>
#include <string_view>

#include "gateway/openai_request.h"

namespace lynx {

enum class FieldType { kBool, kInt, kFloat, kString, kList, kObject, kAny };

// A value that has been found to be of its field's type and within its bounds.
struct FieldValue {
  const Json& json;
  bool boolean = false;
  int64_t integer = 0;
  float number = 0;
};

struct FieldTarget {
  const RequestRules& rules;
  std::string_view body_text;  // of the whole body
  OpenAiRequest& request;
};

struct RequestField {
  std::string_view name;
  unsigned apis;  // bits of Api
  FieldType type;
  double min, max;  // inclusive, for kInt and kFloat
  MaybeError (*apply)(const FieldValue&, FieldTarget&);
};

// In the order in which they are checked.
std::span<const RequestField> RequestFields();

// Null counts as absent.
MaybeError ApplyField(const RequestField& field, const Json& body, FieldTarget& target);

// Fields of other servers, or of a later Lynx: refused when their value asks for something.
MaybeError RefuseUnsupported(Api api, const Json& body);

// A list of token ids, each in the vocabulary.
MaybeError ParseTokenIds(std::string_view param, const Json& list, int vocab_size,
                         std::vector<TokenId>* out);

}  // namespace lynx
