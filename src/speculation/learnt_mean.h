// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace lynx {

// An exponentially weighted mean of what was observed.
class LearntMean {
 public:
  void Observe(double value) {
    mean_ += (known_ ? kWeight : 1) * (value - mean_);
    known_ = true;
  }
  bool known() const { return known_; }
  double value() const { return mean_; }  // 0: nothing was observed

 private:
  static constexpr double kWeight = 0.3;  // of the newest observation
  double mean_ = 0;
  bool known_ = false;
};

}  // namespace lynx
