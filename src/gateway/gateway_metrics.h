// SPDX-License-Identifier: Apache-2.0
// Everything that /metrics shows: what the gateway measures itself, and the daemons' counters.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lynx/generator.h"
#include "lynx/request.h"

namespace lynx {

// One finished choice, in seconds; negative = unknown.
struct ChoiceRecord {
  FinishReason finish_reason = FinishReason::kNone;
  int num_prompt_tokens = 0;
  int num_output_tokens = 0;
  int max_tokens = 0;
  double ttft_s = -1;
  double e2e_s = -1;
  Timeline timeline;
};

// Thread-safe.
class GatewayMetrics {
 public:
  static std::unique_ptr<GatewayMetrics> Create(const std::string& model_name, int max_model_len,
                                                bool vllm_names);
  virtual ~GatewayMetrics() = default;

  // `handler` is the route's pattern.
  virtual void ObserveHttp(std::string_view handler, std::string_view method, int status,
                           double seconds) = 0;
  virtual void ObserveChoice(const ChoiceRecord& record) = 0;
  virtual void ObserveFirstToken(double ttft_s) = 0;
  virtual void ObserveTokenGap(double seconds) = 0;
  virtual void ObserveNumSamples(int n) = 0;
  virtual void CountDisconnect() = 0;
  virtual void CountRejection(std::string_view reason) = 0;

  // Prometheus text format 0.0.4.
  virtual std::string Serialize(const std::vector<DaemonState>& daemons) = 0;
};

}  // namespace lynx
