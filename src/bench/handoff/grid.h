// SPDX-License-Identifier: Apache-2.0
// What `lynx bench handoff` measures: its options as values.
#pragma once

#include <string>
#include <vector>

#include "bench/handoff/handoff.h"
#include "bench/lab/network_lab.h"

namespace lynx {

// One way to hand a prompt over. Those of a cell are measured in turns, so that ratios between
// them are taken side by side.
struct HandoffVariant {
  std::string codec;
  std::string anchor;  // kv.anchor
  std::string verify;  // speculation.verify
  bool operator==(const HandoffVariant&) const = default;
};

struct HandoffGrid {
  struct Link {
    std::string name;     // as the option said it
    bool shaped = false;  // false: "none", loopback
    LinkSpec spec;
  };
  std::vector<Link> links;  // every link at every round trip
  std::vector<int> prompt_tokens;
  std::vector<bool> busy;
  std::vector<HandoffVariant> variants;

  bool shaped() const;  // whether any link is
  int num_cells() const;
};

// kInvalidArgument names the option. Anchors and `verify` vary for codec planes only: the others
// have one stage, or are lossy, and then a hand-off has nothing to choose.
absl::StatusOr<HandoffGrid> MakeHandoffGrid(const BenchHandoffOptions& options);

}  // namespace lynx
