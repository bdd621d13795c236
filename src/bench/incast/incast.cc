// SPDX-License-Identifier: Apache-2.0
// `lynx bench incast`: several prefill sides hand KV to one decode side over its one link.
//
// Each (seed, number of senders, policy) is a run of its own processes: the real KvSender and
// KvReceiver over UCX, real planes of synthetic KV, no model. The same seed gives every policy the
// same arrivals and bytes, and an ideal link's schedule to be compared with.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>

#include "bench/bench.h"
#include "bench/handoff/grid.h"
#include "bench/incast/daemons.h"
#include "bench/incast/host.h"
#include "bench/lab/network_lab.h"
#include "core/clock.h"
#include "nlohmann/json.hpp"

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kPatienceSeconds = 60;
constexpr int64_t kLeadNs = 300'000'000;           // until second 0 of the plan
constexpr double kPayloadOfFrame = 1448.0 / 1514;  // TCP payload of a full Ethernet frame
constexpr double kWindowSeconds = 0.008;           // of a stream, as PullWindow's
constexpr int kRateRequests = 24;                  // that measure an unshaped link

constexpr IncastPolicy kPolicies[] = {IncastPolicy::kLynx, IncastPolicy::kSenderStrict,
                                      IncastPolicy::kTwoStreams, IncastPolicy::kFifo};

struct Cell {
  IncastRun run;
  uint64_t seed = 0;
};

struct RunResult {
  int64_t start_ns = 0;
  ReceiverReport receiver;
  std::vector<SenderReport> senders;
};

absl::StatusOr<std::vector<IncastPolicy>> ParsePolicies(const std::vector<std::string>& names) {
  std::vector<IncastPolicy> policies;
  for (const std::string& name : names) {
    const auto* found = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                     [&](IncastPolicy policy) { return Name(policy) == name; });
    if (found == std::end(kPolicies)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--policies: ", name, " is not lynx, sender_strict, two_streams or fifo"));
    }
    policies.push_back(*found);
  }
  return policies;
}

// ---- one run ------------------------------------------------------------------------------------

enum class Where { kLab, kHere };

absl::StatusOr<RunResult> Execute(const IncastKv& kv, const IncastRun& run, Where where) {
  const auto start = [&](const std::string& name, const std::string& host, auto body) {
    return IncastProcess::Start(name, [&](IncastPipe& pipe) -> absl::Status {
      if (where == Where::kLab) LYNX_RETURN_IF_ERROR(MoveToHost(host));
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
  RunResult result;
  result.start_ns = MonotonicNs() + kLeadNs;
  const std::string start_message(reinterpret_cast<const char*>(&result.start_ns),
                                  sizeof result.start_ns);
  for (IncastProcess& process : processes) {
    LYNX_RETURN_IF_ERROR(process.Write(start_message));
  }
  const double patience_s = 3 * run.requests.back().arrival_s + 2 * kPatienceSeconds;
  for (size_t i = 0; i < processes.size(); ++i) {
    LYNX_ASSIGN_OR_RETURN(const std::string report, processes[i].Read(patience_s));
    if (i == 0)
      result.receiver = ParseReceiverReport(report, run.requests.size());
    else
      result.senders.push_back(ParseSenderReport(report));
  }
  // The receiver goes last: a sender that ends says so to it.
  for (size_t i = 1; i < processes.size(); ++i) LYNX_RETURN_IF_ERROR(processes[i].Join());
  LYNX_RETURN_IF_ERROR(processes[0].Write("end"));
  LYNX_RETURN_IF_ERROR(processes[0].Join());
  return result;
}

// ---- figures ------------------------------------------------------------------------------------

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

Json Quantiles(const std::vector<double>& values) {
  return {{"p50", Quantile(values, 0.5)}, {"p99", Quantile(values, 0.99)}};
}

struct Interval {
  double begin = 0, end = 0;
};

// When at least one request had arrived and was not whole: disjoint, in order.
std::vector<Interval> BusyIntervals(std::vector<Interval> requests) {
  std::sort(requests.begin(), requests.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> busy;
  for (const Interval& request : requests) {
    if (busy.empty() || request.begin > busy.back().end)
      busy.push_back(request);
    else
      busy.back().end = std::max(busy.back().end, request.end);
  }
  return busy;
}

// Measured seconds beside those of the ideal schedule, of all requests.
struct Comparison {
  std::vector<double> measured, ideal;

  Json ToJson() const {
    std::vector<double> each;
    for (size_t i = 0; i < measured.size(); ++i) each.push_back(measured[i] / ideal[i]);
    return {{"measured_s", Quantiles(measured)},
            {"ideal_s", Quantiles(ideal)},
            {"over_ideal",
             {{"p50", Quantile(measured, 0.5) / Quantile(ideal, 0.5)},
              {"p99", Quantile(measured, 0.99) / Quantile(ideal, 0.99)}}},
            {"each_over_ideal", Quantiles(each)}};
  }
};

Json Figures(const IncastRun& run, const RunResult& result, double bytes_per_second) {
  const std::vector<ClassBytes> ideal = IdealSchedule(run.requests, bytes_per_second);
  const auto seconds = [&](int64_t at_ns) {
    return static_cast<double>(at_ns - result.start_ns) * 1e-9;
  };
  Comparison anchor, target;
  std::vector<double> exact;
  std::vector<Interval> transfers;
  double bytes = 0;
  for (size_t i = 0; i < run.requests.size(); ++i) {
    const IncastRequest& request = run.requests[i];
    const ReceivedRequest& received = result.receiver.requests[i];
    const double landed_s = seconds(received.landed_ns[kNumPullClasses - 1]);
    anchor.measured.push_back(seconds(received.landed_ns[0]) - request.arrival_s);
    anchor.ideal.push_back(ideal[i][0]);
    target.measured.push_back(landed_s - request.arrival_s);
    target.ideal.push_back(*std::max_element(ideal[i].begin(), ideal[i].end()));
    exact.push_back(seconds(received.refined_ns) - request.arrival_s);
    transfers.push_back({request.arrival_s, landed_s});
    bytes += std::accumulate(request.bytes.begin(), request.bytes.end(), 0.0);
  }
  const std::vector<Interval> busy = BusyIntervals(std::move(transfers));
  double busy_s = 0;
  for (const Interval& interval : busy) busy_s += interval.end - interval.begin;
  std::vector<double> round_trips;
  double senders_cpu_s = 0;
  for (const SenderReport& sender : result.senders) {
    senders_cpu_s += sender.cpu_s;
    for (const ControlProbe& probe : sender.probes) {
      const double sent_s = seconds(probe.sent_ns);
      const bool in_bulk = std::any_of(busy.begin(), busy.end(), [&](const Interval& interval) {
        return sent_s >= interval.begin && sent_s < interval.end;
      });
      if (in_bulk) round_trips.push_back(static_cast<double>(probe.round_trip_ns) * 1e-9);
    }
  }
  Json control = Quantiles(round_trips);
  control["n"] = round_trips.size();
  return {{"n", run.requests.size()},
          {"anchor", anchor.ToJson()},
          {"target", target.ToJson()},
          {"exact_s", Quantiles(exact)},
          {"link_use", bytes / (bytes_per_second * busy_s)},
          {"busy_s", busy_s},
          {"bytes", bytes},
          {"control_rtt_s", control},
          {"receiver_cpu_s", result.receiver.cpu_s},
          {"senders_cpu_s", senders_cpu_s},
          {"equal", result.receiver.equal}};
}

// ---- all runs -----------------------------------------------------------------------------------

// What an unshaped link carries: everything arrives at once.
absl::StatusOr<double> MeasureRate(const IncastKv& kv) {
  IncastRun run;
  run.requests = PlanArrivals(
      {.num_requests = kRateRequests, .bytes_per_second = 1e12, .load = 1000, .seed = 1}, kv.sizes);
  LYNX_ASSIGN_OR_RETURN(const RunResult result, Execute(kv, run, Where::kHere));
  double bytes = 0;
  int64_t end_ns = 0;
  for (size_t i = 0; i < run.requests.size(); ++i) {
    const ClassBytes& of_request = run.requests[i].bytes;
    bytes += std::accumulate(of_request.begin(), of_request.end(), 0.0);
    end_ns = std::max(end_ns, result.receiver.requests[i].landed_ns[kNumPullClasses - 1]);
  }
  return bytes / (static_cast<double>(end_ns - result.start_ns) * 1e-9);
}

std::vector<Cell> Cells(const BenchIncastOptions& options,
                        const std::vector<IncastPolicy>& policies, const IncastKv& kv,
                        double bytes_per_second) {
  std::vector<Cell> cells;
  for (int seed : options.seeds) {
    for (int senders : options.senders) {
      const std::vector<IncastRequest> requests =
          PlanArrivals({.num_senders = senders,
                        .num_requests = options.requests,
                        .bytes_per_second = bytes_per_second,
                        .load = options.load,
                        .seed = static_cast<uint64_t>(seed)},
                       kv.sizes);
      const auto window = static_cast<size_t>(kWindowSeconds * bytes_per_second);
      for (IncastPolicy policy : policies) {
        cells.push_back({{policy, window, senders, requests}, static_cast<uint64_t>(seed)});
      }
    }
  }
  return cells;
}

absl::Status Print(const Json& line, const std::string& file) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  if (file.empty()) return absl::OkStatus();
  std::ofstream out(file, std::ios::app);
  out << line.dump() << "\n";
  out.close();
  if (out) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--json: cannot write ", file));
}

}  // namespace

absl::Status RunBenchIncast(const BenchIncastOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const auto policies, ParsePolicies(options.policies));
  const KvLayout layout{options.layers, options.kv_heads, options.head_dim, KvDtype::kBf16};
  LYNX_ASSIGN_OR_RETURN(const IncastKv kv,
                        IncastKv::Create(options.codec, layout, options.prompt_tokens));
  std::unique_ptr<NetworkLab> lab;
  Json link = {{"link_bps", nullptr}};
  double bytes_per_second = 0;
  if (options.link != "none") {
    LinkSpec spec;
    LYNX_ASSIGN_OR_RETURN(spec.bits_per_second, ParseBitRate(options.link));
    LYNX_ASSIGN_OR_RETURN(spec.rtt_s, ParseSeconds(options.rtt));
    const int most = *std::max_element(options.senders.begin(), options.senders.end());
    LYNX_ASSIGN_OR_RETURN(lab, NetworkLab::Create({.num_prefill = most}));
    LYNX_RETURN_IF_ERROR(lab->SetLink(spec));
    LYNX_ASSIGN_OR_RETURN(const LinkMeasurement measured, lab->Measure());
    link = {{"link_bps", spec.bits_per_second},
            {"rtt_s", spec.rtt_s},
            {"link_measured_bps", measured.bits_per_second},
            {"rtt_measured_s", measured.rtt_s}};
    bytes_per_second = spec.bits_per_second / 8 * kPayloadOfFrame;
  } else {
    LYNX_ASSIGN_OR_RETURN(bytes_per_second, MeasureRate(kv));
  }
  const std::vector<Cell> cells = Cells(options, policies, kv, bytes_per_second);
  double seconds_left = 0;
  for (const Cell& cell : cells) seconds_left += cell.run.requests.back().arrival_s + 2;
  for (const Cell& cell : cells) {
    const IncastRun& run = cell.run;
    std::fprintf(stderr, "%s, %d senders, seed %d; about %.0f s for what is left\n",
                 std::string(Name(run.policy)).c_str(), run.num_senders,
                 static_cast<int>(cell.seed), seconds_left);
    seconds_left -= run.requests.back().arrival_s + 2;
    LYNX_ASSIGN_OR_RETURN(const RunResult result,
                          Execute(kv, run, lab != nullptr ? Where::kLab : Where::kHere));
    Json line = {{"bench", "incast"},
                 {"policy", Name(run.policy)},
                 {"senders", run.num_senders},
                 {"seed", cell.seed}};
    line.update(link);
    line.update({{"rate_bytes_per_s", bytes_per_second},
                 {"load", options.load},
                 {"prompt_tokens", options.prompt_tokens},
                 {"codec", options.codec}});
    line.update(Figures(run, result, bytes_per_second));
    LYNX_RETURN_IF_ERROR(Print(line, options.json));
  }
  return absl::OkStatus();
}

}  // namespace lynx
