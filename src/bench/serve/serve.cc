// SPDX-License-Identifier: Apache-2.0
// `lynx bench serve`: a load on a server with an OpenAI API, and the figures of `vllm bench serve`;
// with peers, the same load on all in alternation.
#include "bench/serve/serve.h"

#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "bench/json_lines.h"
#include "bench/serve/arrivals.h"
#include "bench/serve/compare.h"
#include "bench/serve/expect.h"
#include "bench/serve/report.h"

namespace lynx {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kReadyCheckPause{2};

absl::StatusOr<ServeSlo> ParseSlo(const std::vector<std::string>& goals) {
  ServeSlo slo;
  const std::map<std::string, std::optional<double>*> limits = {
      {"ttft", &slo.ttft_ms}, {"tpot", &slo.tpot_ms}, {"e2el", &slo.e2el_ms}};
  for (const std::string& goal : goals) {
    const size_t colon = std::min(goal.find(':'), goal.size());
    const auto limit = limits.find(goal.substr(0, colon));
    double ms = -1;
    if (limit == limits.end() || colon == goal.size() ||
        !absl::SimpleAtod(goal.substr(colon + 1), &ms) || !(ms >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--goodput: '", goal, "' is not ttft:MS, tpot:MS or e2el:MS with MS of 0 or more"));
    }
    *limit->second = ms;
  }
  return slo;
}

// A socket for each request at a time.
void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The first of /v1/models, else `otherwise`.
std::string FirstModel(HttpRequest request, const std::string& otherwise) {
  request.method = "GET";
  request.target = "/v1/models";
  request.keep_alive = false;
  const auto response = SendHttp(request);
  if (!response.ok() || response->status != 200) return otherwise;
  const Json body = Json::parse(response->body, nullptr, /*allow_exceptions=*/false);
  const Json& models = Member(body, "data");
  if (!models.is_array() || models.empty()) return otherwise;
  const Json& id = Member(models[0], "id");
  return id.is_string() ? id.get<std::string>() : otherwise;
}

class ServeBench {
 public:
  explicit ServeBench(const BenchServeOptions& options) : options_(options) {}

  absl::Status Prepare();
  absl::Status MeasureOne();
  absl::Status Compare();

 private:
  absl::Status ReadOptions();
  absl::Status AddTarget(const char* flag, const std::string& name, const std::string& url);
  absl::Status WaitUntilReady(ServeTarget& target);
  void WarmUp(const ServeTarget& target, int num_requests);
  std::vector<ServePrompt> PromptsOf(int round) const;
  LoadResult Load(const ServeTarget& target, const std::vector<ServePrompt>& prompts,
                  int round) const;
  absl::Status CheckExpected(const LoadResult& load, const std::vector<ServePrompt>& prompts,
                             nlohmann::ordered_json* result) const;
  absl::Status Save(const nlohmann::ordered_json& result) const;

  const BenchServeOptions& options_;
  ServeSlo slo_;
  Json extra_body_;
  std::vector<ServePrompt> file_prompts_;
  ExpectedAnswers expected_;
  std::vector<ServeTarget> targets_;  // base_url, then peers
};

absl::Status ServeBench::Prepare() {
  LYNX_RETURN_IF_ERROR(ReadOptions());
  LYNX_RETURN_IF_ERROR(AddTarget("--base-url", options_.label, options_.base_url));
  for (const std::string& peer : options_.peers) {
    const size_t equals = peer.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--peer: '", peer, "' is not NAME=URL"));
    }
    LYNX_RETURN_IF_ERROR(AddTarget("--peer", peer.substr(0, equals), peer.substr(equals + 1)));
  }
  RaiseFileLimit();
  for (ServeTarget& target : targets_) LYNX_RETURN_IF_ERROR(WaitUntilReady(target));
  return absl::OkStatus();
}

absl::Status ServeBench::ReadOptions() {
  LYNX_ASSIGN_OR_RETURN(slo_, ParseSlo(options_.goodput));
  if (!(options_.request_rate > 0) || !(options_.burstiness > 0)) {  // NaN is neither
    return absl::InvalidArgumentError("--request-rate and --burstiness must be more than 0");
  }
  if (!options_.extra_body.empty()) {
    extra_body_ = Json::parse(options_.extra_body, nullptr, /*allow_exceptions=*/false);
    if (!extra_body_.is_object()) {
      return absl::InvalidArgumentError("--extra-body is not a JSON object");
    }
  }
  if (options_.dataset_name == "prompts") {
    LYNX_ASSIGN_OR_RETURN(file_prompts_,
                          ReadPrompts(options_.dataset_path, options_.custom_output_len));
  }
  if (!options_.expect.empty()) {
    LYNX_ASSIGN_OR_RETURN(expected_, ReadExpectedAnswers(options_.expect));
  }
  if (!options_.peers.empty() && !(options_.save_result + options_.expect).empty()) {
    return absl::InvalidArgumentError("--save-result and --expect are for one server, no --peer");
  }
  return absl::OkStatus();
}

absl::Status ServeBench::AddTarget(const char* flag, const std::string& name,
                                   const std::string& url) {
  for (const ServeTarget& other : targets_) {
    if (other.name != name) continue;
    return absl::InvalidArgumentError(absl::StrCat(flag, ": two servers are called '", name, "'"));
  }
  ServeTarget target;
  target.name = name;
  const absl::Status parsed = ParseUrl(url, &target.request.host, &target.request.port);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", parsed.message()));
  }
  target.request.method = "POST";
  target.request.target = options_.endpoint;
  target.request.api_key = options_.api_key;
  target.request.keep_alive = true;
  target.is_chat = options_.endpoint.ends_with("chat/completions");
  target.ignore_eos = options_.ignore_eos;
  if (options_.temperature >= 0) target.temperature = options_.temperature;
  target.extra_body = extra_body_;
  targets_.push_back(std::move(target));
  return absl::OkStatus();
}

// One request, again while the server is away or loading; then the model's name is known, too.
absl::Status ServeBench::WaitUntilReady(ServeTarget& target) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(options_.ready_check_timeout_s);
  const std::vector<ServePrompt> prompts = {PromptsOf(0)[0]};
  const bool is_own = &target == &targets_[0];
  while (true) {
    target.model = is_own && !options_.model.empty() ? options_.model
                                                     : FirstModel(target.request, options_.model);
    const LoadPlan plan = {.prompts = prompts, .due_ns = {0}};
    const AnswerRecord answer = RunLoad(target, plan).answers[0];
    if (answer.ok()) return absl::OkStatus();
    const bool may_recover = answer.http_status == 0 || answer.http_status == 503;
    if (!may_recover || std::chrono::steady_clock::now() + kReadyCheckPause > end) {
      return absl::UnavailableError(
          absl::StrCat(target.name, ": the test request failed: ", answer.error));
    }
    std::fprintf(stderr, "%s: not ready yet: %s\n", target.name.c_str(), answer.error.c_str());
    std::this_thread::sleep_for(kReadyCheckPause);
  }
}

// Prompts that no round measures, with all the concurrency of the run.
void ServeBench::WarmUp(const ServeTarget& target, int num_requests) {
  if (num_requests == 0) return;
  const std::vector<ServePrompt> prompts = TakeInTurn(PromptsOf(0), 0, num_requests);
  RunLoad(target, {.prompts = prompts,
                   .due_ns = std::vector<int64_t>(prompts.size()),
                   .max_concurrency = options_.max_concurrency});
}

// Every round has its own, the same for all servers, so that no prefix cache knows them. Round 0
// is the warm-up.
std::vector<ServePrompt> ServeBench::PromptsOf(int round) const {
  if (!file_prompts_.empty()) {
    const size_t first = static_cast<size_t>(round) * static_cast<size_t>(options_.num_prompts);
    return TakeInTurn(file_prompts_, first, options_.num_prompts);
  }
  return RandomPrompts({.num_prompts = options_.num_prompts,
                        .num_distinct = options_.distinct_prompts,
                        .input_tokens = options_.random_input_len,
                        .output_tokens = options_.random_output_len,
                        .range_ratio = options_.random_range_ratio,
                        .seed = options_.seed * 1'000'003 + static_cast<uint64_t>(round)});
}

LoadResult ServeBench::Load(const ServeTarget& target, const std::vector<ServePrompt>& prompts,
                            int round) const {
  const uint64_t seed = options_.seed * 1'000'003 + static_cast<uint64_t>(round);
  return RunLoad(target, {.prompts = prompts,
                          .due_ns = ArrivalTimes(static_cast<int>(prompts.size()),
                                                 options_.request_rate, options_.burstiness, seed),
                          .max_concurrency = options_.max_concurrency,
                          .max_duration_ns = static_cast<int64_t>(options_.max_seconds * 1e9),
                          .shows_progress = true});
}

// How many failed, and why the first did.
std::string Failures(const ServeTarget& target, const LoadResult& load) {
  int num_failed = 0;
  std::string first;
  for (const AnswerRecord& answer : load.answers) {
    if (!answer.ok() && num_failed++ == 0) first = answer.error;
  }
  return absl::StrCat(target.name, ": ", num_failed, " of ", load.answers.size(),
                      " requests failed, the first with: ", first);
}

absl::Status ServeBench::MeasureOne() {
  const ServeTarget& target = targets_[0];
  WarmUp(target, options_.num_warmups);
  std::printf("Traffic request rate: %g\nBurstiness factor: %g (%s)\n", options_.request_rate,
              options_.burstiness,
              options_.burstiness == 1 ? "Poisson process" : "Gamma distribution");
  std::printf(
      "Maximum request concurrency: %s\n",
      options_.max_concurrency > 0 ? absl::StrCat(options_.max_concurrency).c_str() : "None");
  const std::vector<ServePrompt> prompts = PromptsOf(1);
  const LoadResult load = Load(target, prompts, 1);
  const ServeMetrics metrics =
      ComputeServeMetrics(load.answers, load.duration_ns, slo_, options_.metric_percentiles);
  std::printf("%s", ServeReport(metrics, options_).c_str());
  nlohmann::ordered_json result = ServeResult(metrics, load, prompts, options_, target.model);
  const absl::Status expected = CheckExpected(load, prompts, &result);
  std::printf("%s\n", std::string(50, '=').c_str());
  LYNX_RETURN_IF_ERROR(Save(result));
  LYNX_RETURN_IF_ERROR(expected);
  if (metrics.failed > 0) std::fprintf(stderr, "%s\n", Failures(target, load).c_str());
  return metrics.completed > 0 ? absl::OkStatus()
                               : absl::UnavailableError("no request was completed");
}

// Prints and adds to the result how the answers compare with the expected ones.
absl::Status ServeBench::CheckExpected(const LoadResult& load,
                                       const std::vector<ServePrompt>& prompts,
                                       nlohmann::ordered_json* result) const {
  if (options_.expect.empty()) return absl::OkStatus();
  const AnswerCheck check = CheckAnswers(load.answers, prompts, expected_);
  std::printf("%-40s %-10d\n%-40s %-10d\n", "Answers compared:", check.num_compared,
              "Answers that differ:", check.num_different);
  (*result)["answers_compared"] = check.num_compared;
  (*result)["answers_different"] = check.num_different;
  if (check.num_compared > 0 && check.num_different == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(check.num_different, " of ", check.num_compared,
                                          " answers differ from ", options_.expect));
}

absl::Status ServeBench::Compare() {
  int num_warmups = options_.num_warmups;
  if (num_warmups == 0) num_warmups = std::max(1, options_.max_concurrency);
  std::vector<std::string> names;
  for (const ServeTarget& target : targets_) {
    names.push_back(target.name);
    WarmUp(target, num_warmups);
  }
  const auto run = [&](size_t server, int round) {
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.turn_pause_s));
    const LoadResult load = Load(targets_[server], PromptsOf(round), round);
    const ServeMetrics metrics =
        ComputeServeMetrics(load.answers, load.duration_ns, slo_, options_.metric_percentiles);
    if (metrics.failed > 0) {
      std::fprintf(stderr, "%s\n", Failures(targets_[server], load).c_str());
    }
    return ServerRound{metrics.completed, metrics.failed, ServeFigures(metrics, options_)};
  };
  return CompareServers(names, options_.rounds, run, PrintJson);
}

absl::Status ServeBench::Save(const nlohmann::ordered_json& result) const {
  if (options_.save_result.empty()) return absl::OkStatus();
  std::ofstream out(options_.save_result);
  out << result.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(options_.save_result, ": cannot be written"));
}

}  // namespace

absl::Status RunBenchServe(const BenchServeOptions& options) {
  ServeBench bench(options);
  LYNX_RETURN_IF_ERROR(bench.Prepare());
  return options.peers.empty() ? bench.MeasureOne() : bench.Compare();
}

}  // namespace lynx
