// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/grid.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "lynx/codec.h"
#include "lynx/lifetime.h"

namespace lynx {
namespace {

using Units = std::initializer_list<std::pair<const char*, double>>;

// A number and a unit; nothing when it is not.
std::optional<double> ParseQuantity(const std::string& text, Units units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !(number >= 0 && number < 1e15)) return std::nullopt;
  const std::string unit(end, text.data() + text.size());
  for (const auto& [name, factor] : units) {
    if (unit == name) return number * factor;
  }
  return std::nullopt;
}

absl::Status CheckWord(const char* option, const std::string& word,
                       const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), word) != known.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": '", word, "' is not one of ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<std::vector<HandoffGrid::Link>> Links(const BenchHandoffOptions& options) {
  std::vector<HandoffGrid::Link> links;
  for (const std::string& name : options.link) {
    if (name == "none") {
      links.push_back({.name = name, .shaped = false, .spec = {}});
      continue;
    }
    LYNX_ASSIGN_OR_RETURN(const double bits_per_second, ParseBitRate(name));
    for (const std::string& rtt : options.rtt) {
      LYNX_ASSIGN_OR_RETURN(const double rtt_s, ParseSeconds(rtt));
      links.push_back({.name = name,
                       .shaped = true,
                       .spec = {.bits_per_second = bits_per_second, .rtt_s = rtt_s}});
    }
  }
  return links;
}

absl::StatusOr<std::vector<HandoffVariant>> Variants(const BenchHandoffOptions& options) {
  const std::vector<std::string> codecs(CodecNames().begin(), CodecNames().end());
  const std::vector<std::string> modes(kVerifyModeNames.begin(), kVerifyModeNames.end());
  for (const std::string& verify : options.verify) {
    LYNX_RETURN_IF_ERROR(CheckWord("--verify", verify, modes));
  }
  std::vector<HandoffVariant> variants;
  for (const std::string& codec : options.codecs) {
    LYNX_RETURN_IF_ERROR(CheckWord("--codecs", codec, codecs));
    if (codec != "planes") {
      variants.push_back({codec, "default", "residual"});
      continue;
    }
    for (const std::string& anchor : options.anchor) {
      for (const std::string& verify : options.verify) variants.push_back({codec, anchor, verify});
    }
  }
  return variants;
}

}  // namespace

absl::StatusOr<double> ParseBitRate(const std::string& text) {
  const auto rate = ParseQuantity(text, {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}});
  if (rate && *rate >= 1e5 && *rate <= 1e11) return *rate;
  return absl::InvalidArgumentError(
      absl::StrCat("--link: '", text, "' is neither none nor a rate such as 200mbit or 2.5gbit"));
}

absl::StatusOr<double> ParseSeconds(const std::string& text) {
  const auto seconds =
      ParseQuantity(text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"", text == "0" ? 1 : 1e18}});
  if (seconds && *seconds <= 1) return *seconds;
  return absl::InvalidArgumentError(
      absl::StrCat("--rtt: '", text, "' is not a time up to 1s, such as 0.2ms"));
}

bool HandoffGrid::shaped() const {
  return std::any_of(links.begin(), links.end(), [](const Link& link) { return link.shaped; });
}

int HandoffGrid::num_cells() const {
  return static_cast<int>(links.size() * prompt_tokens.size() * busy.size() * variants.size());
}

absl::StatusOr<HandoffGrid> MakeHandoffGrid(const BenchHandoffOptions& options) {
  HandoffGrid grid{.prompt_tokens = options.prompt_tokens};
  LYNX_RETURN_IF_ERROR(CheckWord("--busy", options.busy, {"idle", "busy", "both"}));
  if (options.busy != "busy") grid.busy.push_back(false);
  if (options.busy != "idle") grid.busy.push_back(true);
  LYNX_ASSIGN_OR_RETURN(grid.links, Links(options));
  LYNX_ASSIGN_OR_RETURN(grid.variants, Variants(options));
  if (grid.num_cells() == 0) {
    return absl::InvalidArgumentError("an option with an empty list leaves nothing to measure");
  }
  return grid;
}

}  // namespace lynx
