// SPDX-License-Identifier: Apache-2.0
// Which table of widths the anchors of a decode daemon go by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codec/anchor_widths.h"
#include "core/cluster_config.h"
#include "lynx/status.h"

namespace lynx {

// Where `lynx calibrate` keeps the table of the model with this hash: anchors/HASH.yaml in the
// cache directory; "" without one.
std::string KeptAnchorTable(const ClusterConfig& config, uint64_t model_hash);

// kv.anchor_table, which must be good (kInvalidArgument); else, for kv.anchor default and auto, the
// kept table of the model. A kept one that is damaged is a warning in the log, and none.
absl::StatusOr<std::optional<AnchorWidths>> FindAnchorTable(const ClusterConfig& config,
                                                            uint64_t model_hash, int num_layers);

}  // namespace lynx
