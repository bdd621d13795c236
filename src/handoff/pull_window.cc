// SPDX-License-Identifier: Apache-2.0
#include "handoff/pull_window.h"

#include <algorithm>

namespace lynx {
namespace {

constexpr double kMaxLateSeconds = 0.004;
constexpr int64_t kIntervalNs = 40'000'000;  // a rate is measured over at least this
constexpr double kWeight = 0.05;             // of a new pull in what is known of those before

}  // namespace

void PullWindow::Arrived(size_t pulled_bytes, int64_t issued_ns, int64_t now_ns, bool idle_before) {
  if (idle_before || interval_begin_ns_ == 0) {
    interval_begin_ns_ = issued_ns;
    interval_bytes_ = 0;
  }
  interval_bytes_ += pulled_bytes;
  largest_chunk_ = std::max(largest_chunk_, pulled_bytes);
  if (idle_before) {
    double latency_s = static_cast<double>(now_ns - issued_ns) * 1e-9;
    if (bytes_per_second_ > 0) latency_s -= static_cast<double>(pulled_bytes) / bytes_per_second_;
    FoundLinkIdle(std::max(latency_s, 0.0));
  }
  if (now_ns - interval_begin_ns_ >= kIntervalNs) CloseInterval(now_ns);
}

void PullWindow::FoundLinkIdle(double latency_s) {
  if (latency_s_ < 0) latency_s_ = latency_s;
  const double late_s = std::clamp(latency_s - latency_s_, 0.0, kMaxLateSeconds);
  latency_s_ = std::min(latency_s, latency_s_ + kWeight * late_s);
  lateness_s_ += kWeight * (late_s - lateness_s_);
}

void PullWindow::CloseInterval(int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - interval_begin_ns_) * 1e-9;
  rates_[num_intervals_++ % rates_.size()] = static_cast<double>(interval_bytes_) / seconds;
  interval_begin_ns_ = now_ns;
  interval_bytes_ = 0;
  double fastest = 0, second = 0;  // empty places of the ring hold 0
  for (const double rate : rates_) {
    second = std::max(second, std::min(fastest, rate));
    fastest = std::max(fastest, rate);
  }
  bytes_per_second_ = second > 0 ? second : fastest;
  const double window =
      bytes_per_second_ * (std::max(latency_s_, 0.0) + lateness_s_ + kQueueSeconds);
  const size_t least = std::max(kMinBytes, 2 * largest_chunk_);
  bytes_ = std::clamp(static_cast<size_t>(window), least, std::max(least, kMaxBytes));
}

}  // namespace lynx
