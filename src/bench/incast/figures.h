// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/incast/execution.h"
#include "nlohmann/json.hpp"

namespace lynx {

// What a run came to, beside the schedule of an ideal link of this rate: fields of the run's line.
nlohmann::ordered_json IncastFigures(const IncastRun& run, const IncastResult& result,
                                     double bytes_per_second);

}  // namespace lynx
