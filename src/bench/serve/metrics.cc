// SPDX-License-Identifier: Apache-2.0
#include "bench/serve/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lynx {
namespace {

double Ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Of one completed answer.
struct Latencies {
  double ttft, e2el, queue;
  std::optional<double> tpot;  // two tokens or more
};

Latencies LatenciesOf(const AnswerRecord& answer) {
  Latencies l;
  l.ttft = Ms(answer.event_ns.front() - answer.started_ns);
  l.e2el = Ms(answer.event_ns.back() - answer.started_ns);
  l.queue = Ms(answer.started_ns - answer.due_ns);
  if (answer.output_tokens > 1) {
    l.tpot = (l.e2el - l.ttft) / static_cast<double>(answer.output_tokens - 1);
  }
  return l;
}

bool Meets(const Latencies& l, const ServeSlo& slo) {
  const auto within = [](double value, const std::optional<double>& limit) {
    return !limit || value <= *limit;
  };
  return within(l.ttft, slo.ttft_ms) && within(l.tpot.value_or(0), slo.tpot_ms) &&
         within(l.e2el, slo.e2el_ms);
}

// The most answers under way at one time. One that ends as another starts does not overlap it.
int PeakConcurrency(const std::vector<const AnswerRecord*>& answers) {
  std::vector<std::pair<int64_t, int>> steps;
  for (const AnswerRecord* answer : answers) {
    steps.emplace_back(answer->started_ns, 1);
    steps.emplace_back(answer->event_ns.back(), -1);
  }
  std::sort(steps.begin(), steps.end());
  int running = 0, peak = 0;
  for (const auto& [time, step] : steps) peak = std::max(peak, running += step);
  return peak;
}

std::vector<double> TokensPerSecond(const std::vector<const AnswerRecord*>& answers) {
  std::vector<double> buckets;
  if (answers.empty()) return buckets;
  int64_t begin = answers[0]->started_ns;
  for (const AnswerRecord* answer : answers) begin = std::min(begin, answer->started_ns);
  for (const AnswerRecord* answer : answers) {
    const double tokens =
        static_cast<double>(answer->output_tokens) / static_cast<double>(answer->event_ns.size());
    for (const int64_t time : answer->event_ns) {
      const size_t second = static_cast<size_t>((time - begin) / 1'000'000'000);
      if (second >= buckets.size()) buckets.resize(second + 1);
      buckets[second] += tokens;
    }
  }
  return buckets;
}

}  // namespace

Distribution Describe(std::vector<double> values, std::span<const double> percentiles) {
  Distribution d;
  d.percentiles.resize(percentiles.size());
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  d.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - d.mean) * (value - d.mean);
  d.std = std::sqrt(squares / n);
  const auto at = [&](double percentile) {
    const double position = percentile / 100 * (n - 1);
    const size_t low = static_cast<size_t>(position);
    const size_t high = std::min(low + 1, values.size() - 1);
    return std::lerp(values[low], values[high], position - static_cast<double>(low));
  };
  d.median = at(50);
  std::transform(percentiles.begin(), percentiles.end(), d.percentiles.begin(), at);
  return d;
}

ServeMetrics ComputeServeMetrics(std::span<const AnswerRecord> answers, int64_t duration_ns,
                                 const ServeSlo& slo, std::span<const double> percentiles) {
  ServeMetrics m;
  std::vector<const AnswerRecord*> completed;
  std::vector<double> ttft, tpot, itl, e2el, queue, e2el_with_queue;
  int num_good = 0;
  for (const AnswerRecord& answer : answers) {
    if (!answer.ok()) continue;
    completed.push_back(&answer);
    m.total_input_tokens += answer.prompt_tokens;
    m.total_output_tokens += answer.output_tokens;
    const Latencies l = LatenciesOf(answer);
    num_good += Meets(l, slo);
    ttft.push_back(l.ttft);
    if (l.tpot) tpot.push_back(*l.tpot);
    for (size_t i = 1; i < answer.event_ns.size(); ++i) {
      itl.push_back(Ms(answer.event_ns[i] - answer.event_ns[i - 1]));
    }
    e2el.push_back(l.e2el);
    queue.push_back(l.queue);
    e2el_with_queue.push_back(l.e2el + l.queue);
  }
  m.completed = static_cast<int>(completed.size());
  m.failed = static_cast<int>(answers.size()) - m.completed;
  m.duration_s = static_cast<double>(duration_ns) / 1e9;
  const auto per_second = [&](auto count) {
    return m.duration_s > 0 ? static_cast<double>(count) / m.duration_s : 0;
  };
  m.request_throughput = per_second(m.completed);
  m.request_goodput = per_second(num_good);
  m.output_throughput = per_second(m.total_output_tokens);
  m.total_token_throughput = per_second(m.total_input_tokens + m.total_output_tokens);
  m.ttft_ms = Describe(std::move(ttft), percentiles);
  m.tpot_ms = Describe(std::move(tpot), percentiles);
  m.itl_ms = Describe(std::move(itl), percentiles);
  m.e2el_ms = Describe(std::move(e2el), percentiles);
  m.queue_ms = Describe(std::move(queue), percentiles);
  m.e2el_with_queue_ms = Describe(std::move(e2el_with_queue), percentiles);
  m.tokens_per_s = TokensPerSecond(completed);
  for (const double tokens : m.tokens_per_s) {
    m.max_output_tokens_per_s = std::max(m.max_output_tokens_per_s, tokens);
  }
  m.max_concurrent_requests = PeakConcurrency(completed);
  return m;
}

}  // namespace lynx
