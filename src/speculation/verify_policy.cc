// SPDX-License-Identifier: Apache-2.0
#include "speculation/verify_policy.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr double kLongerNetworkWeight = 0.05;
constexpr double kStepsPerAnswer = 1.5;  // half of the running one, and its own

}  // namespace

void VerifyPolicy::ObserveTransfer(int num_tokens, int64_t bytes, int64_t later_bytes,
                                   int64_t later_ns) {
  if (num_tokens <= 0 || bytes <= 0) return;
  bytes_per_token_.Observe(static_cast<double>(bytes) / num_tokens);
  if (later_bytes <= 0) return;
  bytes_per_ns_.Observe(static_cast<double>(later_bytes) /
                        static_cast<double>(std::max<int64_t>(later_ns, 1)));
}

void VerifyPolicy::ObserveRate(double bytes_per_second) {
  if (bytes_per_second > 0) bytes_per_ns_.Observe(bytes_per_second * 1e-9);
}

void VerifyPolicy::ObserveStep(int64_t step_ns) {
  if (step_ns > 0) step_ns_ = static_cast<double>(step_ns);
}

void VerifyPolicy::ObserveRound(int64_t round_ns, int64_t step_ns) {
  ObserveStep(step_ns);
  const double network_ns =
      std::max(1.0, static_cast<double>(round_ns) - kStepsPerAnswer * step_ns_);
  const bool shorter = network_ns_ == 0 || network_ns < network_ns_;
  network_ns_ += (shorter ? 1 : kLongerNetworkWeight) * (network_ns - network_ns_);
}

int64_t VerifyPolicy::ResidualNs(int num_tokens, int64_t bytes_here, int64_t since_ns) const {
  if (!bytes_per_ns_.known()) return kNotKnown;
  const double left = bytes_per_token_.value() * num_tokens - static_cast<double>(bytes_here);
  const double ns = left / bytes_per_ns_.value() - static_cast<double>(since_ns);
  return std::max<int64_t>(1, static_cast<int64_t>(ns));
}

int64_t VerifyPolicy::SourceNs() const {
  return std::max<int64_t>(1, static_cast<int64_t>(network_ns_ + kStepsPerAnswer * step_ns_));
}

}  // namespace lynx
