// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/grid.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "bench/lab/parse_link.h"
#include "lynx/codec.h"
#include "lynx/lifetime.h"

namespace lynx {
namespace {

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

// Its words are the cluster file's.
absl::Status CheckAnchor(const BenchHandoffOptions& options, const std::string& anchor) {
  if (anchor == "table" && options.config.kv.anchor_table.empty()) {
    return absl::InvalidArgumentError("--anchor: table: --anchor-table is missing");
  }
  ClusterConfig config;
  config.kv.anchor = anchor;
  const absl::Status known = ParseClusterConfig(ToYaml(config), "--anchor").status();
  if (known.ok()) return known;
  const std::string message(known.message());
  return absl::InvalidArgumentError(
      absl::StrCat("--anchor", message.substr(std::min(message.find(": "), message.size()))));
}

absl::StatusOr<std::vector<HandoffVariant>> Variants(const BenchHandoffOptions& options) {
  const std::vector<std::string> codecs(CodecNames().begin(), CodecNames().end());
  const std::vector<std::string> modes(kVerifyModeNames.begin(), kVerifyModeNames.end());
  for (const std::string& verify : options.verify) {
    LYNX_RETURN_IF_ERROR(CheckWord("--verify", verify, modes));
  }
  for (const std::string& anchor : options.anchor) {
    LYNX_RETURN_IF_ERROR(CheckAnchor(options, anchor));
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
