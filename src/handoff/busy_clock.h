// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace lynx {

// How long something was going on, over all times that it was. No threads.
class BusyClock {
 public:
  void Set(bool busy, int64_t now_ns) {
    if (busy == busy_) return;
    if (busy_) total_ns_ += now_ns - since_ns_;
    busy_ = busy;
    since_ns_ = now_ns;
  }
  int64_t total_ns(int64_t now_ns) const { return total_ns_ + (busy_ ? now_ns - since_ns_ : 0); }

 private:
  bool busy_ = false;
  int64_t since_ns_ = 0;
  int64_t total_ns_ = 0;
};

}  // namespace lynx
