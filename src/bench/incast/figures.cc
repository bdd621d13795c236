// SPDX-License-Identifier: Apache-2.0
#include "bench/incast/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;

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
    if (busy.empty() || request.begin > busy.back().end) {
      busy.push_back(request);
    } else {
      busy.back().end = std::max(busy.back().end, request.end);
    }
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

double SecondsOf(const IncastResult& result, int64_t at_ns) {
  return static_cast<double>(at_ns - result.start_ns) * 1e-9;
}

// Of the small messages that were sent while bulk was under way.
Json ControlRoundTrips(const IncastResult& result, const std::vector<Interval>& busy) {
  std::vector<double> round_trips;
  for (const SenderReport& sender : result.senders) {
    for (const ControlProbe& probe : sender.probes) {
      const double sent_s = SecondsOf(result, probe.sent_ns);
      const bool in_bulk = std::any_of(busy.begin(), busy.end(), [&](const Interval& interval) {
        return sent_s >= interval.begin && sent_s < interval.end;
      });
      if (in_bulk) round_trips.push_back(static_cast<double>(probe.round_trip_ns) * 1e-9);
    }
  }
  Json control = Quantiles(round_trips);
  control["n"] = round_trips.size();
  return control;
}

}  // namespace

Json IncastFigures(const IncastRun& run, const IncastResult& result, double bytes_per_second) {
  const std::vector<ClassBytes> ideal = IdealSchedule(run.requests, bytes_per_second);
  const auto seconds = [&](int64_t at_ns) { return SecondsOf(result, at_ns); };
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
  double busy_s = 0, senders_cpu_s = 0;
  for (const Interval& interval : busy) busy_s += interval.end - interval.begin;
  for (const SenderReport& sender : result.senders) senders_cpu_s += sender.cpu_s;
  return {{"n", run.requests.size()},
          {"anchor", anchor.ToJson()},
          {"target", target.ToJson()},
          {"exact_s", Quantiles(exact)},
          {"link_use", bytes / (bytes_per_second * busy_s)},
          {"busy_s", busy_s},
          {"bytes", bytes},
          {"control_rtt_s", ControlRoundTrips(result, busy)},
          {"receiver_cpu_s", result.receiver.cpu_s},
          {"senders_cpu_s", senders_cpu_s},
          {"equal", result.receiver.equal}};
}

}  // namespace lynx
