// SPDX-License-Identifier: Apache-2.0
// JSON from strangers whose objects keep their order, because templates print them in it.
#pragma once

#include <string_view>

#include "lynx/status.h"
#include "nlohmann/json.hpp"

namespace lynx {

using OrderedJson = nlohmann::ordered_json;

// Linear time. kInvalidArgument when `text` is not JSON, nests deeper than 128 levels or has an
// object of more than 512 members: finding one of them takes time proportional to their number.
absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text);

}  // namespace lynx
