// SPDX-License-Identifier: Apache-2.0
#include "gateway/json_text.h"

#include <cmath>

namespace lynx {
namespace {

// Walks over the text once, outside strings only.
MaybeError CheckShape(std::string_view body, const GatewayLimits& limits) {
  int depth = 0;
  int64_t num_values = 1;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '}' || c == ']') --depth;
    if (c == ',' || c == '{' || c == '[') ++num_values;
    if ((c == '{' || c == '[') && ++depth > limits.max_json_depth) {
      return InvalidValue("", StrCat("the body nests deeper than ", limits.max_json_depth,
                                     " levels (at byte ", i, ")"));
    }
    if (num_values > limits.max_json_values) {
      return InvalidValue(
          "", StrCat("the body holds more than ", limits.max_json_values, " JSON values"));
    }
  }
  return std::nullopt;
}

// `literal` is a JSON string with its quotes.
bool IsSpelled(std::string_view literal, std::string_view name) {
  if (literal.find('\\') != literal.npos) return Json::parse(literal) == name;
  return literal.substr(1, literal.size() - 2) == name;
}

}  // namespace

MaybeError ParseBody(std::string_view text, const GatewayLimits& limits, RequestBody* out) {
  LYNX_RETURN_IF_REFUSED(CheckShape(text, limits));
  out->text = text;
  try {
    out->json = Json::parse(text);
  } catch (const Json::exception& e) {
    return InvalidValue("", StrCat("the body is not valid JSON: ", e.what()));
  }
  if (!out->json.is_object()) {
    return InvalidValue(
        "", StrCat("the body must be a JSON object, not a value of type ", out->json.type_name()));
  }
  return std::nullopt;
}

std::string_view MemberText(std::string_view object, std::string_view name) {
  std::string_view found, key;
  int depth = 0;
  size_t value_begin = 0;  // of the member that is being read; 0: its key is
  for (size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    if (c == '"') {
      const size_t begin = i++;
      while (object[i] != '"') i += object[i] == '\\' ? 2 : 1;
      if (depth == 1 && value_begin == 0) key = object.substr(begin, i + 1 - begin);
      continue;
    }
    if (depth == 1 && c == ':') value_begin = i + 1;
    if (depth == 1 && value_begin > 0 && (c == ',' || c == '}')) {
      if (IsSpelled(key, name)) found = object.substr(value_begin, i - value_begin);
      value_begin = 0;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
  }
  return found;
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double FiniteLogprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

}  // namespace lynx
