// SPDX-License-Identifier: Apache-2.0
#include "engine/anchor_options.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "lynx/plane_format.h"

namespace lynx {
namespace {

constexpr const char* kDefaultAnchor = "k4v2";
constexpr const char* kAutoAnchors[] = {"k2v2", "k3v2", "k4v2", "k4v3", "k4v4"};
constexpr double kTableAverages[] = {2.5, 3.5};

// Bits per element beside the codes, and of the exact plane on real caches (docs/codecs.md).
constexpr double kMetadataBits = 0.375, kExactPlaneBits = 2.45, kFineBits = 8;
constexpr double kLowHalfBits = 16;  // of a float32 pool

// Share of wrong drafts over the damage in nats, from the measurements of docs/codecs.md: 8-bit
// codes alone turn 1.8 % of the choices of small models.
double PriorError(double damage) { return 0.018 + 0.27 * std::sqrt(damage); }

class CandidateMaker {
 public:
  CandidateMaker(const std::optional<AnchorWidths>& table, const SendPlan& plan,
                 const KvLayout& layout)
      : plan_(plan), layout_(layout) {
    damage_ = table && !table->damage.empty() ? table->damage : TypicalDamage(layout.num_layers);
  }

  AnchorCandidate OfWidths(std::string name, const AnchorWidths& widths) const {
    double bits = 0;  // of one head's element in each tensor
    for (const int b : widths.bits) bits += b + kMetadataBits;
    AnchorCandidate c = OfBits(std::move(name), bits);
    c.planes = PlanesOfWidths(widths);
    c.prior_error = PriorError(DamageLeft(damage_, widths));
    return c;
  }
  AnchorCandidate Whole() const {
    const std::vector<int>& ends = plan_.plane_end.back();
    const bool exact = ends[0] == kNumPlanes;
    double bits = kFineBits + kMetadataBits + (exact ? kExactPlaneBits : 0);
    if (exact && layout_.dtype == KvDtype::kF32) bits += kLowHalfBits;
    AnchorCandidate c = OfBits("target", bits * static_cast<double>(ends.size()));
    c.planes.assign(ends.begin(), ends.end());
    c.whole = true;
    return c;
  }
  const std::vector<double>& damage() const { return damage_; }

 private:
  AnchorCandidate OfBits(std::string name, double bits) const {
    const double elements = double{1} * layout_.num_kv_heads * layout_.head_dim;
    AnchorCandidate c;
    c.name = std::move(name);
    c.bytes_per_token = elements * bits / 8;
    const double raw = elements * 2 * layout_.num_layers * sizeof(Bf16);
    c.fixed_bytes = (kNumSinkTokens + kNumRecentTokens) * std::max(0.0, raw - c.bytes_per_token);
    return c;
  }

  const SendPlan& plan_;
  const KvLayout& layout_;
  std::vector<double> damage_;
};

void AddAll(const CandidateMaker& make, const std::optional<AnchorWidths>& table, int num_layers,
            AnchorOptions* options) {
  std::vector<AnchorCandidate>& candidates = options->candidates;
  for (const char* name : kAutoAnchors) {
    if (name == std::string_view(kDefaultAnchor)) options->fallback = candidates.size();
    candidates.push_back(make.OfWidths(name, *UniformWidths(name, num_layers)));
  }
  if (table) {
    options->fallback = candidates.size();
    candidates.push_back(make.OfWidths("table", *table));
    for (const double average : kTableAverages) {
      if (table->damage.empty()) break;
      candidates.push_back(
          make.OfWidths(absl::StrCat("table", average), AllocateWidths(make.damage(), average)));
    }
  }
  candidates.push_back(options->whole);
}

}  // namespace

absl::StatusOr<AnchorOptions> MakeAnchorOptions(std::string_view anchor,
                                                const std::optional<AnchorWidths>& table,
                                                const SendPlan& plan, const KvLayout& layout) {
  if (table && table->bits.size() != plan.plane_end.back().size()) {
    return absl::InvalidArgumentError(absl::StrCat("kv.anchor_table: ", table->bits.size() / 2,
                                                   " layers, the model has ", layout.num_layers));
  }
  const CandidateMaker make(table, plan, layout);
  AnchorOptions options;
  options.whole = make.Whole();
  if (anchor == "default") anchor = table ? "table" : kDefaultAnchor;
  if (anchor == "auto") {
    AddAll(make, table, layout.num_layers, &options);
  } else if (anchor == "target") {
    options.candidates = {options.whole};
  } else if (anchor == "table" && table) {
    options.candidates = {make.OfWidths("table", *table)};
  } else if (const auto widths = UniformWidths(anchor, layout.num_layers)) {
    options.candidates = {make.OfWidths(std::string(anchor), *widths)};
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.anchor: ", std::string(anchor), ": ",
                     anchor == "table" ? "kv.anchor_table is missing" : "no such anchor"));
  }
  return options;
}

}  // namespace lynx
