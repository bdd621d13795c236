// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "bench/incast/daemons.h"

namespace lynx {

struct IncastResult {
  int64_t start_ns = 0;  // second 0 of the plan
  ReceiverReport receiver;
  std::vector<SenderReport> senders;
};

enum class IncastPlace { kLab, kHere };  // hosts of the NetworkLab, or all on loopback

// A receiver and its senders as processes of their own, from their start to their end.
absl::StatusOr<IncastResult> ExecuteIncast(const IncastKv& kv, const IncastRun& run,
                                           IncastPlace place);

}  // namespace lynx
