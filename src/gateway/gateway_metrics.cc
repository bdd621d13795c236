// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway_metrics.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "core/timeline.h"
#include "gateway/daemon_metrics.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace lynx {
namespace {

using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenGapBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTransferBuckets = {.0001, .0002, .0005, .001, .002, .005, .01, .02,
                                  .05,   .1,    .2,    .5,   1,    2,    5,   10};
const Buckets kNumSamplesBuckets = {1, 2, 5, 10, 20};

// 1, 2, 5, 10 … up to `limit`.
Buckets LengthBuckets(int limit) {
  Buckets buckets;
  for (double decade = 1; decade <= limit; decade *= 10) {
    for (double step : {1., 2., 5.}) {
      if (decade * step <= limit) buckets.push_back(decade * step);
    }
  }
  return buckets;
}

// Powers of 4 from 4 KiB to 16 GiB.
Buckets ByteBuckets() {
  Buckets buckets;
  for (double bytes = 4096; bytes <= 16.0 * (1 << 30); bytes *= 4) buckets.push_back(bytes);
  return buckets;
}

// The rows that vLLM has under the same name and with the same meaning.
constexpr std::array kVllmNames = {"num_requests_running",
                                   "num_requests_waiting",
                                   "num_requests_waiting_by_reason",
                                   "kv_cache_usage_perc",
                                   "cache_config_info",
                                   "prompt_tokens_total",
                                   "generation_tokens_total",
                                   "prompt_tokens_by_source_total",
                                   "prompt_tokens_cached_total",
                                   "request_success_total",
                                   "num_preemptions_total",
                                   "prefix_cache_queries_total",
                                   "prefix_cache_hits_total",
                                   "spec_decode_num_drafts_total",
                                   "spec_decode_num_draft_tokens_total",
                                   "spec_decode_num_accepted_tokens_total",
                                   "spec_decode_num_accepted_tokens_per_pos_total",
                                   "iteration_tokens_total",
                                   "time_to_first_token_seconds",
                                   "inter_token_latency_seconds",
                                   "request_time_per_output_token_seconds",
                                   "e2e_request_latency_seconds",
                                   "request_queue_time_seconds",
                                   "request_inference_time_seconds",
                                   "request_prefill_time_seconds",
                                   "request_decode_time_seconds",
                                   "request_prompt_tokens",
                                   "request_generation_tokens",
                                   "request_params_max_tokens",
                                   "request_params_n"};

// Shown from the start, as zeros.
constexpr std::array kFinishReasons = {FinishReason::kStop, FinishReason::kLength,
                                       FinishReason::kAbort, FinishReason::kError};
constexpr std::array kRejectionReasons = {"max_num_requests", "max_num_connections"};

const char* ReasonLabel(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    default:
      return "error";
  }
}

struct Span {
  std::optional<int64_t> (*duration)(const Timeline&);
  const char* name;
  const char* help;
};
constexpr std::array<Span, 4> kSpans = {{
    {QueueTime, "lynx:request_queue_time_seconds", "Waiting for room"},
    {PrefillTime, "lynx:request_prefill_time_seconds", "Prefill started to first token"},
    {DecodeTime, "lynx:request_decode_time_seconds", "First to last token"},
    {InferenceTime, "lynx:request_inference_time_seconds", "Scheduled to last token"},
}};
constexpr std::array<std::pair<Event, const char*>, 3> kStages = {{
    {Event::kAnchorLanded, "anchor"},
    {Event::kResidualLanded, "residual"},
    {Event::kTargetLanded, "exact"},
}};

class PrometheusMetrics final : public GatewayMetrics {
 public:
  PrometheusMetrics(const std::string& model_name, int max_model_len, bool vllm_names)
      : model_name_(model_name), vllm_names_(vllm_names) {
    const Buckets lengths = LengthBuckets(max_model_len);
    ttft_ = AddHistogram("lynx:time_to_first_token_seconds",
                         "Request arrived to first token's event written", kFirstTokenBuckets);
    gap_ = AddHistogram("lynx:inter_token_latency_seconds",
                        "Between two events of one choice that carry tokens", kTokenGapBuckets);
    tpot_ =
        AddHistogram("lynx:request_time_per_output_token_seconds",
                     "Per request: first to last token over the tokens between", kTokenGapBuckets);
    e2e_ = AddHistogram("lynx:e2e_request_latency_seconds", "Request arrived to its end",
                        kRequestBuckets);
    for (size_t i = 0; i < kSpans.size(); ++i) {
      spans_[i] = AddHistogram(kSpans[i].name, kSpans[i].help, kRequestBuckets);
    }
    prompt_tokens_ = AddHistogram("lynx:request_prompt_tokens", "Prompt tokens", lengths);
    output_tokens_ = AddHistogram("lynx:request_generation_tokens", "Generated tokens", lengths);
    max_tokens_ = AddHistogram("lynx:request_params_max_tokens", "max_tokens, clamped", lengths);
    num_samples_ = AddHistogram("lynx:request_params_n", "n", kNumSamplesBuckets);
    auto& time = HistogramFamily("lynx:kv_transfer_time_seconds",
                                 "Hand-off asked for to the last byte of a stage");
    auto& bytes = HistogramFamily("lynx:kv_transfer_bytes", "Bytes of a hand-off by stage");
    for (size_t i = 0; i < kStages.size(); ++i) {
      transfer_time_[i] = &time.Add({{"stream", kStages[i].second}}, kTransferBuckets);
      transfer_bytes_[i] = &bytes.Add({{"stream", kStages[i].second}}, ByteBuckets());
    }
    success_ = &CounterFamily("lynx:request_success_total", "Choices ended, by reason");
    for (FinishReason reason : kFinishReasons) {
      success_->Add({{"finished_reason", ReasonLabel(reason)}});
    }
    rejections_ =
        &CounterFamily("lynx:queue_rejections_total", "Requests refused for lack of room");
    for (const char* reason : kRejectionReasons) rejections_->Add({{"reason", reason}});
    disconnects_ = &CounterFamily("lynx:disconnected_clients_total",
                                  "Clients gone before their answer was complete")
                        .Add({});
    http_requests_ = &prometheus::BuildCounter()
                          .Name("http_requests_total")
                          .Help("HTTP requests answered")
                          .Register(registry_);
    http_seconds_ = &prometheus::BuildHistogram()
                         .Name("http_request_duration_seconds")
                         .Help("HTTP request read to answer written")
                         .Register(registry_);
  }

  void ObserveHttp(std::string_view handler, std::string_view method, int status,
                   double seconds) override {
    const std::string h(handler), m(method);
    http_requests_->Add({{"handler", h}, {"method", m}, {"status", std::to_string(status)}})
        .Increment();
    http_seconds_->Add({{"handler", h}, {"method", m}}, kFirstTokenBuckets).Observe(seconds);
  }

  void ObserveChoice(const ChoiceRecord& record) override {
    success_->Add({{"finished_reason", ReasonLabel(record.finish_reason)}}).Increment();
    prompt_tokens_->Observe(record.num_prompt_tokens);
    output_tokens_->Observe(record.num_output_tokens);
    max_tokens_->Observe(record.max_tokens);
    if (record.e2e_s >= 0) e2e_->Observe(record.e2e_s);
    if (record.ttft_s >= 0 && record.num_output_tokens > 1) {
      tpot_->Observe((record.e2e_s - record.ttft_s) / (record.num_output_tokens - 1));
    }
    ObserveTimeline(record.timeline);
  }

  void ObserveFirstToken(double ttft_s) override { ttft_->Observe(ttft_s); }
  void ObserveTokenGap(double seconds) override { gap_->Observe(seconds); }
  void ObserveNumSamples(int n) override { num_samples_->Observe(n); }
  void CountDisconnect() override { disconnects_->Increment(); }
  void CountRejection(std::string_view reason) override {
    rejections_->Add({{"reason", std::string(reason)}}).Increment();
  }

  std::string Serialize(const std::vector<DaemonState>& daemons) override {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    for (auto& family : DaemonMetrics(daemons, model_name_)) Merge(std::move(family), &families);
    if (vllm_names_) AddVllmTwins(&families);
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families);
    return out.str();
  }

 private:
  prometheus::Labels CommonLabels() const {
    return {{"model_name", model_name_}, {"engine", "0"}, {"role", "gateway"}};
  }
  prometheus::Family<Histogram>& HistogramFamily(const char* name, const char* help) {
    return prometheus::BuildHistogram()
        .Name(name)
        .Help(help)
        .Labels(CommonLabels())
        .Register(registry_);
  }
  Histogram* AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return &HistogramFamily(name, help).Add({}, buckets);
  }
  prometheus::Family<prometheus::Counter>& CounterFamily(const char* name, const char* help) {
    return prometheus::BuildCounter()
        .Name(name)
        .Help(help)
        .Labels(CommonLabels())
        .Register(registry_);
  }

  void ObserveTimeline(const Timeline& timeline) {
    auto observe = [&](Histogram* histogram, std::optional<int64_t> ns) {
      if (ns) histogram->Observe(static_cast<double>(*ns) / 1e9);
    };
    for (size_t i = 0; i < kSpans.size(); ++i) observe(spans_[i], kSpans[i].duration(timeline));
    if (timeline.num_handoffs == 0) return;
    for (size_t i = 0; i < kStages.size(); ++i) {
      observe(transfer_time_[i], Between(timeline, Event::kPrefillStarted, kStages[i].first));
      if (i < timeline.stage_bytes.size()) {
        transfer_bytes_[i]->Observe(static_cast<double>(timeline.stage_bytes[i]));
      }
    }
  }

  // A name that gateway and daemons share is one family.
  static void Merge(prometheus::MetricFamily family,
                    std::vector<prometheus::MetricFamily>* families) {
    const auto same = std::find_if(families->begin(), families->end(),
                                   [&](const auto& f) { return f.name == family.name; });
    if (same == families->end()) {
      families->push_back(std::move(family));
    } else {
      std::move(family.metric.begin(), family.metric.end(), std::back_inserter(same->metric));
    }
  }

  // vLLM's dashboards know no label `role`, and the pool's size under another name.
  static void AddVllmTwins(std::vector<prometheus::MetricFamily>* families) {
    std::vector<prometheus::MetricFamily> twins;
    for (const auto& family : *families) {
      const std::string_view name = family.name;
      if (!name.starts_with("lynx:")) continue;
      const std::string bare(name.substr(5));
      if (std::find(kVllmNames.begin(), kVllmNames.end(), bare) == kVllmNames.end()) continue;
      prometheus::MetricFamily twin = family;
      twin.name = "vllm:" + bare;
      for (auto& metric : twin.metric) {
        std::erase_if(metric.label, [](const auto& label) { return label.name == "role"; });
        for (auto& label : metric.label) {
          if (label.name == "num_blocks") label.name = "num_gpu_blocks";
        }
      }
      twins.push_back(std::move(twin));
    }
    std::move(twins.begin(), twins.end(), std::back_inserter(*families));
  }

  const std::string model_name_;
  const bool vllm_names_;
  prometheus::Registry registry_;
  Histogram *ttft_, *gap_, *tpot_, *e2e_, *prompt_tokens_, *output_tokens_, *max_tokens_,
      *num_samples_;
  std::array<Histogram*, kSpans.size()> spans_;
  std::array<Histogram*, kStages.size()> transfer_time_, transfer_bytes_;
  prometheus::Family<prometheus::Counter>*success_, *rejections_, *http_requests_;
  prometheus::Counter* disconnects_;
  prometheus::Family<Histogram>* http_seconds_;
};

}  // namespace

std::unique_ptr<GatewayMetrics> GatewayMetrics::Create(const std::string& model_name,
                                                       int max_model_len, bool vllm_names) {
  return std::make_unique<PrometheusMetrics>(model_name, max_model_len, vllm_names);
}

}  // namespace lynx
