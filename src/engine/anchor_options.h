// SPDX-License-Identifier: Apache-2.0
// kv.anchor -> what a hand-off's anchor may be.
#pragma once

#include <optional>
#include <string_view>

#include "codec/anchor_widths.h"
#include "lynx/kv_layout.h"
#include "speculation/anchor_policy.h"

namespace lynx {

// anchor: one of
//   default   the table, or k4v2 without one
//   k3v2 …    so many code bits of all keys and of all values
//   table     the widths of kv.anchor_table
//   target    all that is sent, in one stage
//   auto      any of k2v2, k3v2, k4v2, k4v3, k4v4, target; with a table also that one and, if it
//             tells the damage, what it would be at an average of 2.5 and 3.5 bits
// plan: of codec `planes`. layout: of the whole model. kInvalidArgument for anything else, and for
// a table that is missing or of another number of layers.
absl::StatusOr<AnchorOptions> MakeAnchorOptions(std::string_view anchor,
                                                const std::optional<AnchorWidths>& table,
                                                const SendPlan& plan, const KvLayout& layout);

}  // namespace lynx
