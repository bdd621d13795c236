// SPDX-License-Identifier: Apache-2.0
#include "codec/anchor_widths.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "lynx/plane_format.h"
#include "yaml-cpp/yaml.h"

namespace lynx {
namespace {

constexpr const char* kKindNames[] = {"key", "value"};

constexpr size_t kMaxTableBytes = 1 << 20;

// nats, over all layers
constexpr double kTypicalKeyDamage = 0.0876, kTypicalValueDamage = 0.0140;

// Calls set(layer, node) for each entry of a list of num_layers; "" or what is wrong.
template <typename Set>
std::string ReadList(const YAML::Node& root, const std::string& name, int num_layers, Set&& set) {
  const YAML::Node list = root[name];
  if (!list || !list.IsSequence() || list.size() != static_cast<size_t>(num_layers)) {
    return absl::StrCat(name, ": want a list of ", num_layers, " numbers");
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    if (!set(layer, list[layer])) {
      return absl::StrCat(name, ": layer ", layer, ": ", list[layer].Scalar());
    }
  }
  return "";
}

std::string ReadKind(const YAML::Node& root, int kind, int num_layers, AnchorWidths* widths) {
  const std::string name = kKindNames[kind];
  const auto set_bits = [&](int layer, const YAML::Node& node) {
    const int bits = widths->bits[layer * 2 + kind] = node.as<int>();
    return bits >= kMinAnchorBits && bits <= kMaxAnchorBits;
  };
  if (const std::string why = ReadList(root, name, num_layers, set_bits); !why.empty()) {
    return absl::StrCat(why, " (widths are 2..4)");
  }
  if (widths->damage.empty()) return "";
  return ReadList(root, name + "_damage", num_layers, [&](int layer, const YAML::Node& node) {
    const double damage = widths->damage[layer * 2 + kind] = node.as<double>();
    return damage >= 0 && std::isfinite(damage);
  });
}

template <typename T>
void AppendList(const std::string& name, const std::vector<T>& values, size_t kind,
                std::string* text) {
  absl::StrAppend(text, name, ": [");
  for (size_t i = kind; i < values.size(); i += 2) {
    absl::StrAppend(text, i == kind ? "" : ", ", values[i]);
  }
  absl::StrAppend(text, "]\n");
}

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

std::optional<AnchorWidths> UniformWidths(std::string_view name, int num_layers) {
  if (name.size() != 4 || name[0] != 'k' || name[2] != 'v') return std::nullopt;
  const int bits[] = {name[1] - '0', name[3] - '0'};
  AnchorWidths widths;
  for (int tensor = 0; tensor < num_layers * 2; ++tensor) widths.bits.push_back(bits[tensor % 2]);
  for (const int b : bits) {
    if (b < kMinAnchorBits || b > kMaxAnchorBits) return std::nullopt;
  }
  return widths;
}

double DamageLeft(std::span<const double> damage, const AnchorWidths& widths) {
  LYNX_CHECK(damage.size() == widths.bits.size());
  double sum = 0;
  for (size_t i = 0; i < damage.size(); ++i) {
    sum += std::ldexp(damage[i], -2 * (widths.bits[i] - kMinAnchorBits));
  }
  return sum;
}

std::vector<double> TypicalDamage(int num_layers) {
  std::vector<double> damage;
  for (int layer = 0; layer < num_layers; ++layer) {
    damage.push_back(kTypicalKeyDamage / num_layers);
    damage.push_back(kTypicalValueDamage / num_layers);
  }
  return damage;
}

std::string ToYaml(const AnchorWidths& widths) {
  std::string text;
  for (size_t kind = 0; kind < 2; ++kind) {
    AppendList(kKindNames[kind], widths.bits, kind, &text);
  }
  for (size_t kind = 0; kind < 2 && !widths.damage.empty(); ++kind) {
    AppendList(absl::StrCat(kKindNames[kind], "_damage"), widths.damage, kind, &text);
  }
  return text;
}

absl::StatusOr<AnchorWidths> ParseAnchorWidths(const std::string& yaml, const std::string& file,
                                               int num_layers) {
  const size_t num_tensors = static_cast<size_t>(num_layers) * 2;
  AnchorWidths widths{std::vector<int>(num_tensors)};
  std::string why;
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (root.IsMap() && root["key_damage"]) widths.damage.resize(num_tensors);
    for (int kind = 0; kind < 2 && why.empty(); ++kind) {
      why = ReadKind(root, kind, num_layers, &widths);
    }
  } catch (const YAML::Exception& e) {
    why = e.what();
  }
  if (why.empty()) return widths;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", why));
}

absl::StatusOr<AnchorWidths> ReadAnchorWidths(const std::string& path, int num_layers) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  }
  if (std::filesystem::file_size(path, error) > kMaxTableBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is too large for a table of widths"));
  }
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return ParseAnchorWidths(text.str(), path, num_layers);
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

AnchorPlanes PlanesOfWidths(const AnchorWidths& widths) {
  AnchorPlanes planes;
  for (const int bits : widths.bits) planes.push_back(static_cast<uint8_t>(PlanesOfBits(bits)));
  return planes;
}

absl::StatusOr<SendPlan> WithAnchor(const SendPlan& plan, const AnchorPlanes& anchor) {
  const std::vector<int>& target = plan.plane_end.back();
  if (anchor.size() != target.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the anchor covers ", anchor.size(),
                                                   " tensors, the cache has ", target.size()));
  }
  SendPlan result{{{anchor.begin(), anchor.end()}}};
  for (size_t i = 0; i < anchor.size(); ++i) {
    if (anchor[i] < 1 || anchor[i] > target[i]) {
      return absl::InvalidArgumentError(absl::StrCat("the anchor of layer ", i / 2, " ",
                                                     kKindNames[i % 2], " has ", int{anchor[i]},
                                                     " planes, want 1..", target[i]));
    }
  }
  for (int stage = 1; stage < plan.num_stages(); ++stage) {
    std::vector<int> ends = plan.plane_end[stage];
    for (size_t i = 0; i < ends.size(); ++i) {
      ends[i] = std::max(ends[i], result.plane_end.back()[i]);
    }
    if (ends != result.plane_end.back()) result.plane_end.push_back(std::move(ends));
  }
  return result;
}

}  // namespace lynx
