// SPDX-License-Identifier: Apache-2.0
// How many code bits of each layer's keys and values the anchor of `planes` holds: a property of
// the send order, not of the format. `lynx calibrate` writes such a table for a model.
//
// File (YAML): key: [bits of layer 0, bits of layer 1, ...] and value: [...], each 2, 3 or 4.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lynx/codec.h"
#include "lynx/status.h"

namespace lynx {

inline constexpr int kMinAnchorBits = 2, kMaxAnchorBits = 4;

struct AnchorWidths {
  std::vector<int> bits;  // [layer * 2 + kind]
};

// The widths that cost least at this average (2 .. 4), given what each tensor costs alone when it
// has 2 bits and all others are exact. Damage falls to a quarter with every bit, and adds up; so
// each next bit goes where it saves most.
AnchorWidths AllocateWidths(std::span<const double> damage, double average_bits);

std::string ToYaml(const AnchorWidths& widths);
// kInvalidArgument names the file and what is wrong in it.
absl::StatusOr<AnchorWidths> ParseAnchorWidths(const std::string& yaml, const std::string& file,
                                               int num_layers);

// Leading planes of the format that hold so many code bits (2, 3, 4 or 8); -1 when none do.
int PlanesOfBits(int bits);

// Anchor of these widths, then the rest up to 8 bits, then the exact plane unless it is left out.
SendPlan AnchorSendPlan(const AnchorWidths& widths, bool exact_target);

}  // namespace lynx
