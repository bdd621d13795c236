// SPDX-License-Identifier: Apache-2.0
// How many code bits of each layer's keys and values the anchor of `planes` holds: a property of
// the send order, not of the format. `lynx calibrate` writes such a table for a model.
//
// File (YAML): key: [bits of layer 0, bits of layer 1, ...] and value: [...], each 2, 3 or 4; and,
// of what calibration has measured, key_damage: [...] and value_damage: [...] (both or neither).
//
// *Damage* of a tensor (the keys or the values of a layer): the KL divergence, in nats, that its 2
// leading bits alone cost while everything else is exact. It falls to a quarter with every further
// bit and adds up over tensors (docs/codecs.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/codec.h"
#include "lynx/status.h"

namespace lynx {

inline constexpr int kMinAnchorBits = 2, kMaxAnchorBits = 4;

struct AnchorWidths {
  std::vector<int> bits;            // [layer * 2 + kind]
  std::vector<double> damage = {};  // the same, or empty: not measured
};

// The widths that cost least at this average (2 .. 4): each next bit goes where it saves most.
AnchorWidths AllocateWidths(std::span<const double> damage, double average_bits);

// "k4v2": 4 bits of all keys and 2 of all values, each 2 .. 4; nullopt: not such a name.
std::optional<AnchorWidths> UniformWidths(std::string_view name, int num_layers);

// What these widths cost of the damage.
double DamageLeft(std::span<const double> damage, const AnchorWidths& widths);

// For models that were not calibrated: SmolLM2-135M at 4K tokens, every layer alike. Keys hold 86 %
// of the 0.102 nats that k2v2 costs.
std::vector<double> TypicalDamage(int num_layers);

std::string ToYaml(const AnchorWidths& widths);
// kInvalidArgument names the file and what is wrong in it.
absl::StatusOr<AnchorWidths> ParseAnchorWidths(const std::string& yaml, const std::string& file,
                                               int num_layers);
absl::StatusOr<AnchorWidths> ReadAnchorWidths(const std::string& path, int num_layers);

// Leading planes of the format that hold so many code bits (2, 3, 4 or 8); -1 when none do.
int PlanesOfBits(int bits);

// Anchor of these widths, then the rest up to 8 bits, then the exact plane unless it is left out.
SendPlan AnchorSendPlan(const AnchorWidths& widths, bool exact_target);

// The anchor of one hand-off: how many leading planes of each tensor, [layer * 2 + kind].
using AnchorPlanes = std::vector<uint8_t>;

AnchorPlanes PlanesOfWidths(const AnchorWidths& widths);

// The same planes in the same order with another anchor: later stages end where they did, and those
// that have nothing left to bring are left out. kInvalidArgument when the anchor is not of that
// many tensors, or a tensor's is empty or more than the plan sends.
absl::StatusOr<SendPlan> WithAnchor(const SendPlan& plan, const AnchorPlanes& anchor);

}  // namespace lynx
