// SPDX-License-Identifier: Apache-2.0
// `lynx bench incast`: several prefill sides hand KV to one decode side over its one link.
//
// Each (seed, number of senders, policy) is a run of its own processes: the real KvSender and
// KvReceiver over UCX, real planes of synthetic KV, no model. The same seed gives every policy the
// same arrivals and bytes, and an ideal link's schedule to be compared with.
#include "bench/incast/incast.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>

#include "bench/incast/figures.h"
#include "bench/json_lines.h"
#include "bench/lab/network_lab.h"
#include "bench/lab/parse_link.h"
#include "handoff/pull_window.h"

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kPayloadOfFrame = 1448.0 / 1514;  // TCP payload of a full Ethernet frame
constexpr int kRateRequests = 24;                  // that measure an unshaped link

constexpr IncastPolicy kPolicies[] = {IncastPolicy::kLynx, IncastPolicy::kSenderStrict,
                                      IncastPolicy::kTwoStreams, IncastPolicy::kFifo};

struct Cell {
  IncastRun run;
  uint64_t seed = 0;
};

// About, with the start of its processes.
double SecondsFor(const Cell& cell) { return cell.run.requests.back().arrival_s + 2; }

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

// What an unshaped link carries: everything arrives at once.
absl::StatusOr<double> MeasureRate(const IncastKv& kv) {
  IncastRun run;
  run.requests = PlanArrivals(
      {.num_requests = kRateRequests, .bytes_per_second = 1e12, .load = 1000, .seed = 1}, kv.sizes);
  LYNX_ASSIGN_OR_RETURN(const IncastResult result, ExecuteIncast(kv, run, IncastPlace::kHere));
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
      const auto stream_window = static_cast<size_t>(PullWindow::kQueueSeconds * bytes_per_second);
      for (IncastPolicy policy : policies) {
        cells.push_back({{policy, stream_window, senders, requests}, static_cast<uint64_t>(seed)});
      }
    }
  }
  return cells;
}

// The link of a run, and its fields of a line.
struct Link {
  std::unique_ptr<NetworkLab> lab;  // null: loopback
  double bytes_per_second = 0;      // of payload
  Json fields = {{"link_bps", nullptr}};
};

absl::StatusOr<Link> OpenLink(const BenchIncastOptions& options, const IncastKv& kv) {
  Link link;
  if (options.link == "none") {
    LYNX_ASSIGN_OR_RETURN(link.bytes_per_second, MeasureRate(kv));
    return link;
  }
  LinkSpec spec;
  LYNX_ASSIGN_OR_RETURN(spec.bits_per_second, ParseBitRate(options.link));
  LYNX_ASSIGN_OR_RETURN(spec.rtt_s, ParseSeconds(options.rtt));
  const int most = *std::max_element(options.senders.begin(), options.senders.end());
  LYNX_ASSIGN_OR_RETURN(link.lab, NetworkLab::Create({.num_prefill = most}));
  LYNX_RETURN_IF_ERROR(link.lab->SetLink(spec));
  LYNX_ASSIGN_OR_RETURN(const LinkMeasurement measured, link.lab->Measure());
  link.bytes_per_second = spec.bits_per_second / 8 * kPayloadOfFrame;
  link.fields = {{"link_bps", spec.bits_per_second},
                 {"rtt_s", spec.rtt_s},
                 {"link_measured_bps", measured.bits_per_second},
                 {"rtt_measured_s", measured.rtt_s}};
  return link;
}

Json LineOf(const BenchIncastOptions& options, const Cell& cell, const Link& link,
            const IncastResult& result) {
  Json line = {{"bench", "incast"},
               {"policy", Name(cell.run.policy)},
               {"senders", cell.run.num_senders},
               {"seed", cell.seed}};
  line.update(link.fields);
  line.update({{"rate_bytes_per_s", link.bytes_per_second},
               {"load", options.load},
               {"prompt_tokens", options.prompt_tokens},
               {"codec", options.codec}});
  line.update(IncastFigures(cell.run, result, link.bytes_per_second));
  return line;
}

}  // namespace

absl::Status RunBenchIncast(const BenchIncastOptions& options) {
  LYNX_ASSIGN_OR_RETURN(const auto policies, ParsePolicies(options.policies));
  const KvLayout layout{options.layers, options.kv_heads, options.head_dim, KvDtype::kBf16};
  LYNX_ASSIGN_OR_RETURN(const IncastKv kv,
                        IncastKv::Create(options.codec, layout, options.prompt_tokens));
  LYNX_ASSIGN_OR_RETURN(JsonLines json, JsonLines::Open(options.json));
  LYNX_ASSIGN_OR_RETURN(const Link link, OpenLink(options, kv));
  const std::vector<Cell> cells = Cells(options, policies, kv, link.bytes_per_second);
  double seconds_left = 0;
  for (const Cell& cell : cells) seconds_left += SecondsFor(cell);
  for (const Cell& cell : cells) {
    std::fprintf(stderr, "%s, %d senders, seed %d; about %.0f s for what is left\n",
                 std::string(Name(cell.run.policy)).c_str(), cell.run.num_senders,
                 static_cast<int>(cell.seed), seconds_left);
    seconds_left -= SecondsFor(cell);
    const IncastPlace place = link.lab != nullptr ? IncastPlace::kLab : IncastPlace::kHere;
    LYNX_ASSIGN_OR_RETURN(const IncastResult result, ExecuteIncast(kv, cell.run, place));
    LYNX_RETURN_IF_ERROR(json.Print(LineOf(options, cell, link, result)));
  }
  return absl::OkStatus();
}

}  // namespace lynx
