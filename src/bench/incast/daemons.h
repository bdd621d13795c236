// SPDX-License-Identifier: Apache-2.0
// The two kinds of process of an incast run: a prefill side that hands over synthetic KV at the
// times of a plan, and the decode side that receives from all of them.
#pragma once

#include <string>
#include <vector>

#include "bench/incast/kv.h"
#include "bench/incast/pipe.h"
#include "bench/incast/plan.h"
#include "bench/incast/transport.h"

namespace lynx {

struct IncastRun {
  IncastPolicy policy = IncastPolicy::kLynx;
  size_t stream_window_bytes = 0;
  int num_senders = 1;
  std::vector<IncastRequest> requests;
};

// Monotonic times, comparable because all processes are on one machine; 0 = did not happen.
struct ReceivedRequest {
  int64_t landed_ns[kNumPullClasses] = {0, 0, 0};
  int64_t refined_ns = 0;
};
struct ReceiverReport {
  std::vector<ReceivedRequest> requests;
  bool equal = false;  // the whole cache ended as the senders'
  double cpu_s = 0;
};
struct SenderReport {
  std::vector<ControlProbe> probes;
  double cpu_s = 0;
};

// Both warm up first (one small request per sender, over the same connections), then wait for the
// time of the plan's second 0, which the pipe brings. The receiver's first message is its address.
absl::Status RunIncastReceiver(const IncastKv& kv, const IncastRun& run, IncastPipe& pipe);
absl::Status RunIncastSender(const IncastKv& kv, const IncastRun& run, int sender,
                             const std::string& receiver_address, IncastPipe& pipe);

ReceiverReport ParseReceiverReport(std::string_view bytes, size_t num_requests);
SenderReport ParseSenderReport(std::string_view bytes);

}  // namespace lynx
