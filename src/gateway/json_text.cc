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

}  // namespace

MaybeError ParseBody(std::string_view body, const GatewayLimits& limits, Json* out) {
  LYNX_RETURN_IF_REFUSED(CheckShape(body, limits));
  try {
    *out = Json::parse(body);
  } catch (const Json::exception& e) {
    return InvalidValue("", StrCat("the body is not valid JSON: ", e.what()));
  }
  if (!out->is_object()) {
    return InvalidValue(
        "", StrCat("the body must be a JSON object, not a value of type ", out->type_name()));
  }
  return std::nullopt;
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double FiniteLogprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

}  // namespace lynx
