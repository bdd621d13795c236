// SPDX-License-Identifier: Apache-2.0
// What `lynx bench serve` prints and saves: the fields and keys of `vllm bench serve`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bench/serve/load.h"
#include "bench/serve/metrics.h"
#include "bench/serve/serve.h"

namespace lynx {

// The latencies that --percentile-metrics may name.
std::vector<std::string> ServeLatencyNames();

// Rates, and mean_, median_, std_ and p99_ (or as --metric-percentiles says) of the latencies that
// --percentile-metrics names: the keys of the JSON result that side-by-side runs compare.
std::vector<std::pair<std::string, double>> ServeFigures(const ServeMetrics& metrics,
                                                         const BenchServeOptions& options);

// The block between "Serving Benchmark Result" and the closing line, with a newline at the end.
std::string ServeReport(const ServeMetrics& metrics, const BenchServeOptions& options);

// The saved result. Per-request arrays are in the order of the prompts; times are in seconds, and
// 0 for a failed request. Beyond vLLM's keys it has tokens_per_s and, if detailed, prompts.
nlohmann::ordered_json ServeResult(const ServeMetrics& metrics, const LoadResult& load,
                                   const std::vector<ServePrompt>& prompts,
                                   const BenchServeOptions& options, const std::string& model);

}  // namespace lynx
