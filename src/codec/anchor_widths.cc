// SPDX-License-Identifier: Apache-2.0
#include "codec/anchor_widths.h"

#include <algorithm>

#include "lynx/plane_format.h"
#include "yaml-cpp/yaml.h"

namespace lynx {
namespace {

constexpr const char* kKindKeys[] = {"key", "value"};

}  // namespace

AnchorWidths AllocateWidths(std::span<const double> damage, double average_bits) {
  AnchorWidths widths{std::vector<int>(damage.size(), kMinAnchorBits)};
  std::vector<double> left(damage.begin(), damage.end());  // that one more bit would quarter
  auto budget = static_cast<int>((average_bits - kMinAnchorBits) * damage.size() + 0.5);
  for (; budget > 0; --budget) {
    const auto most = std::max_element(left.begin(), left.end());
    if (most == left.end() || *most < 0) break;
    const auto tensor = most - left.begin();
    *most = ++widths.bits[tensor] == kMaxAnchorBits ? -1 : *most / 4;
  }
  return widths;
}

std::string ToYaml(const AnchorWidths& widths) {
  std::string text;
  for (size_t kind = 0; kind < 2; ++kind) {
    absl::StrAppend(&text, kKindKeys[kind], ": [");
    for (size_t i = kind; i < widths.bits.size(); i += 2) {
      absl::StrAppend(&text, i == kind ? "" : ", ", widths.bits[i]);
    }
    absl::StrAppend(&text, "]\n");
  }
  return text;
}

absl::StatusOr<AnchorWidths> ParseAnchorWidths(const std::string& yaml, const std::string& file,
                                               int num_layers) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
  };
  AnchorWidths widths{std::vector<int>(static_cast<size_t>(num_layers) * 2)};
  try {
    const YAML::Node root = YAML::Load(yaml);
    for (int kind = 0; kind < 2; ++kind) {
      const YAML::Node list = root[kKindKeys[kind]];
      if (!list || !list.IsSequence() || list.size() != static_cast<size_t>(num_layers)) {
        return error(absl::StrCat(kKindKeys[kind], ": want a list of ", num_layers, " widths"));
      }
      for (int layer = 0; layer < num_layers; ++layer) {
        const int bits = list[layer].as<int>();
        if (bits < kMinAnchorBits || bits > kMaxAnchorBits) {
          return error(
              absl::StrCat(kKindKeys[kind], ": layer ", layer, ": ", bits, " is not in 2..4"));
        }
        widths.bits[layer * 2 + kind] = bits;
      }
    }
  } catch (const YAML::Exception& e) {
    return error(e.what());
  }
  return widths;
}

int PlanesOfBits(int bits) {
  int sum = 0;
  for (int p = 0; p < kExactPlane; ++p) {
    sum += PlaneBits(p);
    if (sum == bits) return p + 1;
  }
  return -1;
}

SendPlan AnchorSendPlan(const AnchorWidths& widths, bool exact_target) {
  SendPlan plan{{{}, std::vector<int>(widths.bits.size(), kExactPlane)}};
  for (const int bits : widths.bits) plan.plane_end[0].push_back(PlanesOfBits(bits));
  if (exact_target) plan.plane_end.emplace_back(widths.bits.size(), kNumPlanes);
  return plan;
}

}  // namespace lynx
