// SPDX-License-Identifier: Apache-2.0
// The JSON object of a cell (docs/results/README.md has the meaning of every field).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/handoff/grid.h"
#include "bench/handoff/sample.h"
#include "nlohmann/json.hpp"

namespace lynx {

struct HandoffCell {
  HandoffVariant variant;
  HandoffGrid::Link link;
  LinkMeasurement measured;  // zeros where the link is not shaped
  int prompt_tokens = 0;
  bool busy = false;
  bool prefill_cached = false;  // the prefill daemon had the prompt's KV
  int threads = 0;              // of each daemon
  bool own_cores = false;       // and as many cores, which no other daemon uses

  struct Run {
    HandoffSample sample;
    const HandoffSample* reference = nullptr;  // the BF16 answer to the same prompt
    std::string needle;
    // What the daemons' counters grew by, in seconds: with a busy prefill side others' as well.
    std::map<std::string, double> counted_s;
  };
  std::vector<Run> runs;
};

nlohmann::ordered_json CellJson(const HandoffCell& cell);

}  // namespace lynx
