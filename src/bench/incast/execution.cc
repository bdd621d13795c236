// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/execution.h"

#include <utility>

#include "bench/incast/host.h"
#include "core/clock.h"

namespace lynx {
namespace {

constexpr double kPatienceSeconds = 60;
constexpr int64_t kLeadNs = 300'000'000;  // until second 0 of the plan

}  // namespace

absl::StatusOr<IncastResult> ExecuteIncast(const IncastKv& kv, const IncastRun& run,
                                           IncastPlace place) {
  const auto start = [&](const std::string& name, const std::string& host, auto body) {
    return IncastProcess::Start(name, [&](IncastPipe& pipe) -> absl::Status {
      if (place == IncastPlace::kLab) LYNX_RETURN_IF_ERROR(MoveToHost(host));
      return body(pipe);
    });
  };
  std::vector<IncastProcess> processes;
  LYNX_ASSIGN_OR_RETURN(IncastProcess receiver, start("receiver", "d0", [&](IncastPipe& pipe) {
                          return RunIncastReceiver(kv, run, pipe);
                        }));
  processes.push_back(std::move(receiver));
  LYNX_ASSIGN_OR_RETURN(const std::string address, processes[0].Read(kPatienceSeconds));
  for (int s = 0; s < run.num_senders; ++s) {
    LYNX_ASSIGN_OR_RETURN(
        IncastProcess sender,
        start(absl::StrCat("sender ", s), absl::StrCat("p", s),
              [&](IncastPipe& pipe) { return RunIncastSender(kv, run, s, address, pipe); }));
    processes.push_back(std::move(sender));
  }
  for (IncastProcess& process : processes) {
    LYNX_RETURN_IF_ERROR(process.Read(kPatienceSeconds).status());
  }
  IncastResult result;
  result.start_ns = MonotonicNs() + kLeadNs;
  const std::string start_message(reinterpret_cast<const char*>(&result.start_ns),
                                  sizeof result.start_ns);
  for (IncastProcess& process : processes) {
    LYNX_RETURN_IF_ERROR(process.Write(start_message));
  }
  const double patience_s = 3 * run.requests.back().arrival_s + 2 * kPatienceSeconds;
  for (size_t i = 0; i < processes.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const std::string report, processes[i].Read(patience_s));
    if (i == 0) {
      result.receiver = ParseReceiverReport(report, run.requests.size());
    } else {
      result.senders.push_back(ParseSenderReport(report));
    }
  }
  // The receiver goes last: a sender that ends says so to it.
  for (size_t i = 1; i < processes.size(); ++i) LYNX_RETURN_IF_ERROR(processes[i].Join());
  LYNX_RETURN_IF_ERROR(processes[0].Write("end"));
  LYNX_RETURN_IF_ERROR(processes[0].Join());
  return result;
}

}  // namespace lynx
