// SPDX-License-Identifier: Apache-2.0
// The figures of `vllm bench serve`, from the times of many answers.
//
// TTFT: sent -> first event with tokens. E2EL: sent -> last one. ITL: gap between events of one
// stream. TPOT: (E2EL - TTFT) / (output tokens - 1), of answers with two tokens or more; 0 for the
// others when an SLO asks. Failed requests count in no distribution and meet no SLO.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "bench/serve/answer.h"

namespace lynx {

// Upper limits that a request must all meet to be a good one.
struct ServeSlo {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

struct Distribution {
  double mean = 0, median = 0;
  double std = 0;                   // of the population
  std::vector<double> percentiles;  // interpolated linearly; one for each that was asked for
};
// All 0 for no values. percentiles: 0 to 100.
Distribution Describe(std::vector<double> values, std::span<const double> percentiles);

struct ServeMetrics {
  int completed = 0, failed = 0;
  int64_t total_input_tokens = 0, total_output_tokens = 0;  // of completed requests
  double duration_s = 0;
  double request_throughput = 0, request_goodput = 0;        // per second
  double output_throughput = 0, total_token_throughput = 0;  // tokens per second
  Distribution ttft_ms, tpot_ms, itl_ms, e2el_ms;
  Distribution queue_ms;             // due -> sent
  Distribution e2el_with_queue_ms;   // due -> last event
  std::vector<double> tokens_per_s;  // received in each second from the first request's start; an
                                     // answer's tokens are spread evenly over its events
  double max_output_tokens_per_s = 0;
  int max_concurrent_requests = 0;  // of the completed ones
};
ServeMetrics ComputeServeMetrics(std::span<const AnswerRecord> answers, int64_t duration_ns,
                                 const ServeSlo& slo, std::span<const double> percentiles);

}  // namespace lynx
