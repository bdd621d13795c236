// SPDX-License-Identifier: Apache-2.0
#include "text/ordered_json.h"

#include "formats/json_guard.h"

namespace lynx {

absl::StatusOr<OrderedJson> ParseOrderedJson(std::string_view text) {
  LYNX_RETURN_IF_ERROR(CheckJson(text, {.max_depth = 128, .max_num_members = 512}));
  try {
    return OrderedJson::parse(text);
  } catch (const OrderedJson::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace lynx
