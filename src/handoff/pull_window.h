// SPDX-License-Identifier: Apache-2.0
// How many bytes to keep outstanding: enough to keep the link busy, few enough that an urgent chunk
// is not queued behind many. Measures the rate while the receiver is busy, and the latency of pulls
// that had the link to themselves; the window is rate × (latency + 8 ms). Pure logic.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lynx {

class PullWindow {
 public:
  static constexpr size_t kMinBytes = 512 << 10;
  static constexpr size_t kMaxBytes = 64 << 20;

  explicit PullWindow(size_t initial_bytes) : bytes_(initial_bytes) {}

  // A pull of `pulled_bytes` was asked for at issued_ns and has arrived. `idle_before`: nothing
  // was outstanding when it was asked for, so a new busy period began then.
  void Arrived(size_t pulled_bytes, int64_t issued_ns, int64_t now_ns, bool idle_before);

  size_t bytes() const { return bytes_; }
  double bytes_per_second() const { return bytes_per_second_; }  // 0 = not known yet

 private:
  void CloseInterval(int64_t now_ns);

  size_t bytes_;
  double bytes_per_second_ = 0;
  double latency_s_ = 0;           // 0 = not known yet
  int64_t interval_begin_ns_ = 0;  // 0 = none open
  size_t interval_bytes_ = 0;
};

}  // namespace lynx
