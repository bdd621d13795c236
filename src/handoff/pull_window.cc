// SPDX-License-Identifier: Apache-2.0
#include "handoff/pull_window.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr double kQueueSeconds = 0.008;
constexpr int64_t kIntervalNs = 20'000'000;           // a rate is measured over at least this
constexpr int64_t kLatencyPeriodNs = 10'000'000'000;  // a shortest latency is believed this long
constexpr double kNewSampleWeight = 0.25;

}  // namespace

void PullWindow::Arrived(size_t pulled_bytes, int64_t issued_ns, int64_t now_ns, bool idle_before) {
  if (idle_before || interval_begin_ns_ == 0) {
    interval_begin_ns_ = issued_ns;
    interval_bytes_ = 0;
  }
  interval_bytes_ += pulled_bytes;
  const double latency_s = static_cast<double>(now_ns - issued_ns) * 1e-9;
  if (latency_since_ns_ == 0 || latency_s < latency_s_ ||
      now_ns - latency_since_ns_ > kLatencyPeriodNs) {
    latency_s_ = latency_s;
    latency_since_ns_ = now_ns;
  }
  if (now_ns - interval_begin_ns_ >= kIntervalNs) CloseInterval(now_ns);
}

void PullWindow::CloseInterval(int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - interval_begin_ns_) * 1e-9;
  const double rate = static_cast<double>(interval_bytes_) / seconds;
  bytes_per_second_ = bytes_per_second_ == 0
                          ? rate
                          : bytes_per_second_ + kNewSampleWeight * (rate - bytes_per_second_);
  const double window = bytes_per_second_ * (latency_s_ + kQueueSeconds);
  bytes_ = static_cast<size_t>(std::clamp(window, double{kMinBytes}, double{kMaxBytes}));
  interval_begin_ns_ = now_ns;
  interval_bytes_ = 0;
}

}  // namespace lynx
