// SPDX-License-Identifier: Apache-2.0
// JSON in and out, with the limits that keep a hostile body cheap.
#pragma once

#include <string>
#include <string_view>

#include "gateway/api_error.h"
#include "gateway/gateway.h"
#include "gateway/str_cat.h"
#include "nlohmann/json.hpp"

namespace lynx {

using Json = nlohmann::json;

struct RequestBody {
  Json json = Json::object();
  std::string_view text;  // what it was parsed from
};

// Parses a request body, which must be an object. Depth and number of values are counted before
// anything is built. Numbers that are not finite (1e999) are refused. `text` must outlive *out.
MaybeError ParseBody(std::string_view text, const GatewayLimits& limits, RequestBody* out);

// The text of a member of the object that `object`, valid JSON, spells: as in Json, the last one of
// that name. Empty when there is none.
std::string_view MemberText(std::string_view object, std::string_view name);

// One line. Bytes that are not UTF-8 become U+FFFD; never throws.
std::string DumpJson(const Json& value);

// −inf and NaN have no JSON form: −9999.0, as OpenAI sends them.
double FiniteLogprob(double logprob);

}  // namespace lynx
