// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/compare.h"

#include <algorithm>

#include "bench/serve/metrics.h"

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;
using Rounds = std::vector<ServerRound>;  // of one server

Json RoundLine(const std::string& name, int round, const ServerRound& result) {
  Json line = {{"kind", "round"},
               {"round", round},
               {"server", name},
               {"completed", result.completed},
               {"failed", result.failed}};
  for (const auto& [key, value] : result.figures) line[key] = value;
  return line;
}

// Median, least, largest and spread; nulls where a round has no value.
Json Spread(const std::vector<double>& values) {
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  const double median = Describe(values, {}).median;
  return {{"median", median},
          {"min", *least},
          {"max", *largest},
          {"spread", median != 0 ? Json((*largest - *least) / median) : Json()}};
}

Json ServerLine(const std::string& name, const Rounds& rounds) {
  Json line = {{"kind", "server"}, {"server", name}, {"rounds", rounds.size()}};
  int failed = 0;
  for (const ServerRound& round : rounds) failed += round.failed;
  line["failed"] = failed;
  for (size_t i = 0; i < rounds[0].figures.size(); ++i) {
    std::vector<double> values;
    for (const ServerRound& round : rounds) values.push_back(round.figures[i].second);
    line[rounds[0].figures[i].first] = Spread(values);
  }
  return line;
}

// Null where the peer has a 0.
Json RatioLine(const std::string& name, const Rounds& ours, const std::string& peer,
               const Rounds& theirs, size_t figure) {
  const std::string& key = ours[0].figures[figure].first;
  Json line = {{"kind", "ratio"},
               {"server", name},
               {"peer", peer},
               {"metric", key},
               {"better", key.ends_with("_ms") ? "lower" : "higher"}};
  std::vector<double> ratios;
  for (size_t round = 0; round < ours.size(); ++round) {
    const double theirs_value = theirs[round].figures[figure].second;
    if (theirs_value != 0) ratios.push_back(ours[round].figures[figure].second / theirs_value);
  }
  line.update(ratios.size() == ours.size() ? Spread(ratios) : Json{{"median", nullptr}});
  return line;
}

}  // namespace

absl::Status CompareServers(const std::vector<std::string>& names, int num_rounds,
                            const std::function<ServerRound(size_t, int)>& run,
                            const std::function<void(const Json&)>& emit) {
  std::vector<Rounds> results(names.size());
  for (int round = 1; round <= num_rounds; ++round) {
    for (size_t turn = 0; turn < names.size(); ++turn) {
      const size_t server = (turn + static_cast<size_t>(round) - 1) % names.size();
      results[server].push_back(run(server, round));
      const ServerRound& result = results[server].back();
      emit(RoundLine(names[server], round, result));
      if (result.completed == 0) {
        return absl::UnavailableError(
            absl::StrCat(names[server], ": round ", round, ": no request was completed"));
      }
    }
  }
  for (size_t server = 0; server < names.size(); ++server) {
    emit(ServerLine(names[server], results[server]));
  }
  for (size_t peer = 1; peer < names.size(); ++peer) {
    for (size_t figure = 0; figure < results[0][0].figures.size(); ++figure) {
      if (results[0][0].figures[figure].first.starts_with("std_")) continue;
      emit(RatioLine(names[0], results[0], names[peer], results[peer], figure));
    }
  }
  return absl::OkStatus();
}

}  // namespace lynx
