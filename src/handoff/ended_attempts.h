// SPDX-License-Identifier: Apache-2.0
// What became of the attempts that ended lately: late chunks of them are refused, and a sender that
// asks again is told again. Remembers a bounded number; the oldest are forgotten.
#pragma once

#include <deque>
#include <map>

#include "handoff/wire.h"

namespace lynx {

class EndedAttempts {
 public:
  static constexpr size_t kMaxRemembered = 4096;

  void Add(const AttemptId& attempt, ControlMessage verdict) {
    if (!verdicts_.insert_or_assign(attempt, std::move(verdict)).second) return;
    order_.push_back(attempt);
    if (order_.size() <= kMaxRemembered) return;
    verdicts_.erase(order_.front());
    order_.pop_front();
  }
  const ControlMessage* Find(const AttemptId& attempt) const {
    auto it = verdicts_.find(attempt);
    return it == verdicts_.end() ? nullptr : &it->second;
  }

 private:
  std::map<AttemptId, ControlMessage> verdicts_;
  std::deque<AttemptId> order_;
};

}  // namespace lynx
