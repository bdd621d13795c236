// SPDX-License-Identifier: Apache-2.0
// The counters of all daemons as Prometheus families.
#pragma once

#include <string>
#include <vector>

#include "lynx/generator.h"
#include "prometheus/metric_family.h"

namespace lynx {

// Names start with "lynx:"; labels model_name, engine (the index in `daemons`), role.
std::vector<prometheus::MetricFamily> DaemonMetrics(const std::vector<DaemonState>& daemons,
                                                    const std::string& model_name);

}  // namespace lynx
