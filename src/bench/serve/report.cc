// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace lynx {
namespace {

using Json = nlohmann::ordered_json;

struct LatencyField {
  const char* key;
  const char* name;
  const char* title;
  Distribution ServeMetrics::*distribution;
};

constexpr LatencyField kLatencies[] = {
    {"ttft", "TTFT", "Time to First Token", &ServeMetrics::ttft_ms},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &ServeMetrics::tpot_ms},
    {"itl", "ITL", "Inter-token Latency", &ServeMetrics::itl_ms},
    {"e2el", "E2EL", "End-to-end Latency", &ServeMetrics::e2el_ms},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing", &ServeMetrics::queue_ms},
    {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
     &ServeMetrics::e2el_with_queue_ms},
};

std::vector<LatencyField> Selected(const BenchServeOptions& options) {
  const auto& names = options.percentile_metrics;
  std::vector<LatencyField> selected;
  for (const LatencyField& field : kLatencies) {
    if (std::find(names.begin(), names.end(), field.key) != names.end()) selected.push_back(field);
  }
  return selected;
}

// `title` in the middle of 50 characters.
std::string Rule(const std::string& title, char fill) {
  const size_t left = (50 - title.size()) / 2;
  return absl::StrCat(std::string(left, fill), title, std::string(50 - title.size() - left, fill),
                      "\n");
}

std::string Line(const std::string& name, int64_t value) {
  return absl::StrFormat("%-40s %-10d\n", name, value);
}
std::string Line(const std::string& name, double value) {
  return absl::StrFormat("%-40s %-10.2f\n", name, value);
}

double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

// One array entry a request.
template <typename F>
Json Each(const LoadResult& load, F&& value) {
  Json array = Json::array();
  for (const AnswerRecord& answer : load.answers) array.push_back(value(answer));
  return array;
}

Json GapsOf(const AnswerRecord& answer) {
  Json gaps = Json::array();
  for (size_t i = 1; answer.ok() && i < answer.event_ns.size(); ++i) {
    gaps.push_back(Seconds(answer.event_ns[i] - answer.event_ns[i - 1]));
  }
  return gaps;
}

void AddDetails(const LoadResult& load, const std::vector<ServePrompt>& prompts, Json* result) {
  Json& r = *result;
  r["input_lens"] = Each(load, [](const AnswerRecord& a) { return a.prompt_tokens; });
  r["output_lens"] = Each(load, [](const AnswerRecord& a) { return a.ok() ? a.output_tokens : 0; });
  r["ttfts"] = Each(load, [](const AnswerRecord& a) {
    return a.ok() ? Seconds(a.event_ns.front() - a.started_ns) : 0.0;
  });
  r["itls"] = Each(load, GapsOf);
  r["start_times"] = Each(load, [](const AnswerRecord& a) { return Seconds(a.started_ns); });
  r["generated_texts"] = Each(load, [](const AnswerRecord& a) { return a.text; });
  r["errors"] = Each(load, [](const AnswerRecord& a) { return a.error; });
  r["prompts"] = Json::array();
  for (size_t i = 0; i < load.answers.size(); ++i) r["prompts"].push_back(prompts[i].text);
}

}  // namespace

std::vector<std::string> ServeLatencyNames() {
  std::vector<std::string> names;
  for (const LatencyField& field : kLatencies) names.push_back(field.key);
  return names;
}

std::vector<std::pair<std::string, double>> ServeFigures(const ServeMetrics& metrics,
                                                         const BenchServeOptions& options) {
  std::vector<std::pair<std::string, double>> figures = {
      {"request_throughput", metrics.request_throughput},
      {"output_throughput", metrics.output_throughput},
      {"total_token_throughput", metrics.total_token_throughput}};
  if (!options.goodput.empty()) figures.emplace_back("request_goodput", metrics.request_goodput);
  for (const LatencyField& field : Selected(options)) {
    const Distribution& d = metrics.*field.distribution;
    figures.emplace_back(absl::StrCat("mean_", field.key, "_ms"), d.mean);
    figures.emplace_back(absl::StrCat("median_", field.key, "_ms"), d.median);
    figures.emplace_back(absl::StrCat("std_", field.key, "_ms"), d.std);
    for (size_t i = 0; i < d.percentiles.size(); ++i) {
      figures.emplace_back(absl::StrCat("p", options.metric_percentiles[i], "_", field.key, "_ms"),
                           d.percentiles[i]);
    }
  }
  return figures;
}

std::string ServeReport(const ServeMetrics& m, const BenchServeOptions& options) {
  std::string text = Rule(" Serving Benchmark Result ", '=');
  text += Line("Successful requests:", int64_t{m.completed});
  text += Line("Failed requests:", int64_t{m.failed});
  if (options.max_concurrency > 0) {
    text += Line("Maximum request concurrency:", int64_t{options.max_concurrency});
  }
  if (!std::isinf(options.request_rate)) {
    text += Line("Request rate configured (RPS):", options.request_rate);
  }
  text += Line("Benchmark duration (s):", m.duration_s);
  text += Line("Total input tokens:", m.total_input_tokens);
  text += Line("Total generated tokens:", m.total_output_tokens);
  text += Line("Request throughput (req/s):", m.request_throughput);
  if (!options.goodput.empty()) text += Line("Request goodput (req/s):", m.request_goodput);
  text += Line("Output token throughput (tok/s):", m.output_throughput);
  text += Line("Peak output token throughput (tok/s):", m.max_output_tokens_per_s);
  text += Line("Peak concurrent requests:", double(m.max_concurrent_requests));
  text += Line("Total token throughput (tok/s):", m.total_token_throughput);
  for (const LatencyField& field : Selected(options)) {
    const Distribution& d = m.*field.distribution;
    text += Rule(field.title, '-');
    text += Line(absl::StrCat("Mean ", field.name, " (ms):"), d.mean);
    text += Line(absl::StrCat("Median ", field.name, " (ms):"), d.median);
    for (size_t i = 0; i < d.percentiles.size(); ++i) {
      text += Line(absl::StrCat("P", options.metric_percentiles[i], " ", field.name, " (ms):"),
                   d.percentiles[i]);
    }
  }
  return text;
}

Json ServeResult(const ServeMetrics& m, const LoadResult& load,
                 const std::vector<ServePrompt>& prompts, const BenchServeOptions& options,
                 const std::string& model) {
  Json r;
  r["date"] = absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
  r["backend"] = options.endpoint.ends_with("chat/completions") ? "openai-chat" : "openai";
  r["endpoint_type"] = r["backend"];
  r["label"] = options.label;
  r["model_id"] = model;
  r["tokenizer_id"] = nullptr;
  r["num_prompts"] = options.num_prompts;
  r["request_rate"] = std::isinf(options.request_rate) ? Json("inf") : Json(options.request_rate);
  r["burstiness"] = std::isinf(options.burstiness) ? Json("inf") : Json(options.burstiness);
  r["max_concurrency"] = options.max_concurrency > 0 ? Json(options.max_concurrency) : Json();
  r["duration"] = m.duration_s;
  r["completed"] = m.completed;
  r["failed"] = m.failed;
  r["total_input_tokens"] = m.total_input_tokens;
  r["total_output_tokens"] = m.total_output_tokens;
  r["request_goodput"] = nullptr;  // unless an SLO is given
  for (const auto& [key, value] : ServeFigures(m, options)) r[key] = value;
  r["latencies"] = Each(load, [](const AnswerRecord& a) {
    return a.ok() ? Seconds(a.event_ns.back() - a.started_ns) : 0.0;
  });
  r["queue_times"] =
      Each(load, [](const AnswerRecord& a) { return Seconds(a.started_ns - a.due_ns); });
  r["max_output_tokens_per_s"] = m.max_output_tokens_per_s;
  r["max_concurrent_requests"] = m.max_concurrent_requests;
  r["rtfx"] = 0.0;  // of audio only
  r["tokens_per_s"] = m.tokens_per_s;
  if (options.save_detailed) AddDetails(load, prompts, &r);
  return r;
}

}  // namespace lynx
