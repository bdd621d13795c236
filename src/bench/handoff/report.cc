// SPDX-License-Identifier: Apache-2.0
#include "bench/handoff/report.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;
using Run = HandoffCell::Run;
constexpr int kTokenCounts[] = {1, 2, 8, 32, 64};

double Rounded(double value) { return std::round(value * 1e6) / 1e6; }

struct Spread {
  double median = 0;
  double spread = 0;  // (largest - smallest) / median
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  const double range = values.back() - values.front();
  return {Rounded(median), median > 0 ? Rounded(range / median) : 0};
}

using Read = std::function<double(const Run&)>;

Spread Over(const std::vector<Run>& runs, const Read& read) {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(read(run));
  return SpreadOf(std::move(values));
}

double Sum(const std::vector<Run>& runs, const Read& read) {
  double sum = 0;
  for (const Run& run : runs) sum += read(run);
  return sum;
}

// Medians into `cell`, spreads into `spread`, under the same name.
void AddTime(const std::vector<Run>& runs, const char* name, const Read& read, Json* cell,
             Json* spread) {
  const Spread s = Over(runs, read);
  (*cell)[name] = s.median;
  (*spread)[name] = s.spread;
}

void AddTimesToTokens(const std::vector<Run>& runs, const char* name,
                      std::vector<double> HandoffSample::*times, Json* cell, Json* spread) {
  Json medians = Json::object(), spreads = Json::object();
  for (const int k : kTokenCounts) {
    const bool reached = std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
      return (run.sample.*times).size() > static_cast<size_t>(k);
    });
    if (!reached) break;
    const Spread s = Over(runs, [&](const Run& run) { return (run.sample.*times)[k]; });
    medians[std::to_string(k)] = s.median;
    spreads[std::to_string(k)] = s.spread;
  }
  (*cell)[name] = std::move(medians);
  (*spread)[name] = std::move(spreads);
}

// Tokens before the first difference.
size_t EqualTokens(const Run& run) {
  const auto& got = run.sample.tokens;
  const auto& want = run.reference->tokens;
  const size_t n = std::min(got.size(), want.size());
  return std::mismatch(got.begin(), got.begin() + n, want.begin()).first - got.begin();
}

void AddAgreement(const std::vector<Run>& runs, Json* cell) {
  Json divergence = Json::array();
  int num_equal = 0, asked = 0, found = 0, found_by_bf16 = 0;
  for (const Run& run : runs) {
    const bool equal = run.sample.tokens == run.reference->tokens;
    num_equal += equal;
    divergence.push_back(equal ? Json(nullptr) : Json(EqualTokens(run)));
    if (run.needle.empty()) continue;
    ++asked;
    found += run.sample.text.find(run.needle) != std::string::npos;
    found_by_bf16 += run.reference->text.find(run.needle) != std::string::npos;
  }
  (*cell)["equal_to_bf16"] = Rounded(static_cast<double>(num_equal) / runs.size());
  (*cell)["first_divergence"] = std::move(divergence);
  (*cell)["needles"] = {{"asked", asked}, {"found", found}, {"found_by_bf16", found_by_bf16}};
}

// How often each word came up.
Json Tally(const std::vector<Run>& runs, std::string HandoffSample::*word) {
  Json tally = Json::object();
  for (const Run& run : runs) {
    const std::string& name = run.sample.*word;
    if (!name.empty()) tally[name] = tally.value(name, 0) + 1;
  }
  return tally;
}

// The counter of what is exposed, which is no phase.
constexpr char kEncodeExposed[] = "encode_exposed";

// Where the time of a hand-off went; the parts overlap each other and the prefill.
Json Split(const std::vector<Run>& runs) {
  Json split = Json::object();
  for (const auto& [name, unused] : runs[0].counted_s) {
    if (name == kEncodeExposed) continue;
    split[name] =
        Over(runs, [&name = name](const Run& run) { return run.counted_s.at(name); }).median;
  }
  return split;
}

// What of it lay after token 1.
Json Exposed(const std::vector<Run>& runs) {
  const auto median = [&](const Read& read) { return Over(runs, read).median; };
  return {{"encode", median([](const Run& r) { return r.counted_s.at(kEncodeExposed); })},
          {"anchor", median([](const Run& r) { return r.sample.anchor_s; })},
          {"transfer", median([](const Run& r) { return r.sample.landed_s; })},
          {"refine", median([](const Run& r) { return r.sample.refined_s - r.sample.landed_s; })},
          {"verify", median([](const Run& r) { return r.sample.judged_s - r.sample.refined_s; })}};
}

Json Bytes(const std::vector<Run>& runs) {
  Json bytes = Json::object();
  const char* const names[] = {"anchor", "residual", "exact"};
  for (size_t i = 0; i < std::size(names); ++i) {
    bytes[names[i]] = static_cast<int64_t>(
        Over(runs, [i](const Run& r) { return static_cast<double>(r.sample.bytes[i]); }).median);
  }
  return bytes;
}

Json Place(const HandoffCell& cell) {
  Json place = {{"kind", "handoff"},
                {"codec", cell.variant.codec},
                {"anchor", cell.variant.anchor},
                {"verify", cell.variant.verify},
                {"link", cell.link.name},
                {"link_bps", cell.link.spec.bits_per_second},
                {"rtt_s", cell.link.spec.rtt_s},
                {"link_measured_bps", std::round(cell.measured.bits_per_second)},
                {"rtt_measured_s", Rounded(cell.measured.rtt_s)},
                {"prompt_tokens", cell.prompt_tokens},
                {"prefill_busy", cell.busy},
                {"prefill_cached", cell.prefill_cached},
                {"threads", cell.threads},
                {"own_cores", cell.own_cores},
                {"n", cell.runs.size()}};
  if (!cell.link.shaped) {
    for (const char* name : {"link_bps", "rtt_s", "link_measured_bps", "rtt_measured_s"}) {
      place[name] = nullptr;
    }
  }
  return place;
}

}  // namespace

Json CellJson(const HandoffCell& cell) {
  const std::vector<Run>& runs = cell.runs;
  Json json = Place(cell), spread = Json::object();
  AddTime(
      runs, "ttft_s", [](const Run& r) { return r.sample.ttft_s; }, &json, &spread);
  AddTime(
      runs, "ttst_s", [](const Run& r) { return r.sample.ttst_s; }, &json, &spread);
  AddTime(
      runs, "stall_s", [](const Run& r) { return r.sample.stall_s; }, &json, &spread);
  AddTimesToTokens(runs, "t_provisional_s", &HandoffSample::provisional_s, &json, &spread);
  AddTimesToTokens(runs, "t_verified_s", &HandoffSample::verified_s, &json, &spread);
  json["bytes"] = Bytes(runs);
  json["split_s"] = Split(runs);
  json["exposed_s"] = Exposed(runs);
  const double drafted = Sum(runs, [](const Run& r) { return r.sample.drafted; });
  const double accepted = Sum(runs, [](const Run& r) { return r.sample.accepted; });
  json["drafted"] = Rounded(drafted / runs.size());
  json["accepted"] = Rounded(accepted / runs.size());
  json["revoked"] = Rounded((drafted - accepted) / runs.size());
  json["verify_rounds"] =
      Rounded(Sum(runs, [](const Run& r) { return r.sample.verify_rounds; }) / runs.size());
  json["verified_by_source"] =
      Rounded(Sum(runs, [](const Run& r) { return r.sample.verified_by_source; }) / runs.size());
  json["verify_chosen"] = Tally(runs, &HandoffSample::verify);
  json["anchor_chosen"] = Tally(runs, &HandoffSample::anchor);
  json["retried"] = Sum(runs, [](const Run& r) { return r.sample.handoffs > 1; });
  AddAgreement(runs, &json);
  json["spread"] = std::move(spread);
  return json;
}

}  // namespace lynx
