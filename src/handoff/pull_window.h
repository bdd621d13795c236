// SPDX-License-Identifier: Apache-2.0
// How many bytes to keep outstanding: enough to keep the link busy, few enough that an urgent chunk
// is not queued behind many. The window is rate × (latency + lateness + 4 ms), and two chunks at
// least.
//
// Rate: of the busy intervals of late the second fastest. A machine whose threads wake late moves
// fewer bytes in some intervals; were the window made smaller for that, it would move fewer still.
// The fastest may be a burst that had been held up before. Latency: of pulls that found the link
// idle, without the time that their bytes take on it; the shortest, but a path that has become
// longer is believed in the end. Lateness: how much longer than that they take in the mean, because
// threads at either end wake late; at most 4 ms, since some wait for a lost packet. Pure logic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lynx {

class PullWindow {
 public:
  static constexpr size_t kMinBytes = 128 << 10;
  static constexpr size_t kMaxBytes = 64 << 20;
  static constexpr double kQueueSeconds = 0.004;  // of the rate, beside what keeps the link busy

  explicit PullWindow(size_t initial_bytes) : bytes_(initial_bytes) {}

  // A pull of `pulled_bytes` was asked for at issued_ns and has arrived. `idle_before`: nothing
  // was outstanding when it was asked for, so a new busy period began then.
  void Arrived(size_t pulled_bytes, int64_t issued_ns, int64_t now_ns, bool idle_before);

  size_t bytes() const { return bytes_; }
  double bytes_per_second() const { return bytes_per_second_; }  // 0 = not known yet

 private:
  void FoundLinkIdle(double latency_s);
  void CloseInterval(int64_t now_ns);

  size_t bytes_;
  double bytes_per_second_ = 0;
  double latency_s_ = -1;  // < 0: not known yet
  double lateness_s_ = 0;
  int64_t interval_begin_ns_ = 0;  // 0 = none open
  size_t interval_bytes_ = 0;
  std::array<double, 16> rates_ = {};  // of the last intervals, a ring
  size_t num_intervals_ = 0;           // so far
  size_t largest_chunk_ = 0;
};

}  // namespace lynx
