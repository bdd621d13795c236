// SPDX-License-Identifier: Apache-2.0
#include "handoff/pull_window.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr double kQueueSeconds = 0.008;
constexpr int64_t kIntervalNs = 20'000'000;  // a rate is measured over at least this
constexpr double kRateWeight = 0.25;         // of a new sample
constexpr double kSlowerLatencyWeight = 0.05;

}  // namespace

void PullWindow::Arrived(size_t pulled_bytes, int64_t issued_ns, int64_t now_ns, bool idle_before) {
  if (idle_before || interval_begin_ns_ == 0) {
    interval_begin_ns_ = issued_ns;
    interval_bytes_ = 0;
  }
  interval_bytes_ += pulled_bytes;
  if (idle_before) {
    // The shortest, but a path that has become longer is believed in the end.
    const double latency_s = static_cast<double>(now_ns - issued_ns) * 1e-9;
    const double slower_s = latency_s_ + kSlowerLatencyWeight * (latency_s - latency_s_);
    latency_s_ = latency_s_ == 0 ? latency_s : std::min(latency_s, slower_s);
  }
  if (now_ns - interval_begin_ns_ >= kIntervalNs) CloseInterval(now_ns);
}

void PullWindow::CloseInterval(int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - interval_begin_ns_) * 1e-9;
  const double rate = static_cast<double>(interval_bytes_) / seconds;
  bytes_per_second_ =
      bytes_per_second_ == 0 ? rate : bytes_per_second_ + kRateWeight * (rate - bytes_per_second_);
  const double window = bytes_per_second_ * (latency_s_ + kQueueSeconds);
  bytes_ = static_cast<size_t>(std::clamp(window, double{kMinBytes}, double{kMaxBytes}));
  interval_begin_ns_ = now_ns;
  interval_bytes_ = 0;
}

}  // namespace lynx
