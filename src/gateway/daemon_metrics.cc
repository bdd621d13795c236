// SPDX-License-Identifier: Apache-2.0
#include "gateway/daemon_metrics.h"

#include <utility>

namespace lynx {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

struct StatField {
  const char* name;
  MetricType type;
  const char* help;
  const char* label;  // one more label, or null
  const char* label_value;
  double (*read)(const DaemonState&);
};

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

#define STAT(field) [](const DaemonState& d) { return static_cast<double>(d.stats.field); }

// Rows of one name stand together: they become one family.
const StatField kStats[] = {
    {"lynx:num_requests_running", MetricType::Gauge, "Sequences being computed", nullptr, nullptr,
     STAT(num_running)},
    {"lynx:num_requests_waiting", MetricType::Gauge, "Sequences waiting for room", nullptr, nullptr,
     STAT(num_waiting)},
    {"lynx:kv_cache_usage_perc", MetricType::Gauge, "Share of KV blocks that are held, 0..1",
     nullptr, nullptr,
     [](const DaemonState& d) {
       return Share(d.stats.blocks_request + d.stats.blocks_transfer, d.stats.blocks_total);
     }},
    {"lynx:kv_blocks", MetricType::Gauge, "KV blocks by owner", "state", "free", STAT(blocks_free)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "request", STAT(blocks_request)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "transfer", STAT(blocks_transfer)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "cached", STAT(blocks_cached)},
    {"lynx:kv_blocks_capacity", MetricType::Gauge, "KV blocks of the pool", nullptr, nullptr,
     STAT(blocks_total)},
    {"lynx:prompt_tokens_total", MetricType::Counter, "Prompt tokens served", nullptr, nullptr,
     STAT(prompt_tokens)},
    {"lynx:prompt_tokens_by_source_total", MetricType::Counter,
     "Prompt tokens by origin of their KV", "source", "local_compute",
     STAT(prompt_tokens_computed)},
    {"lynx:prompt_tokens_by_source_total", MetricType::Counter, "", "source", "local_cache_hit",
     STAT(prompt_tokens_cached)},
    {"lynx:prompt_tokens_by_source_total", MetricType::Counter, "", "source",
     "external_kv_transfer", STAT(prompt_tokens_transferred)},
    {"lynx:prompt_tokens_cached_total", MetricType::Counter,
     "Prompt tokens found in the prefix cache", nullptr, nullptr, STAT(prompt_tokens_cached)},
    {"lynx:generation_tokens_total", MetricType::Counter, "Tokens generated", nullptr, nullptr,
     STAT(generation_tokens)},
    {"lynx:num_preemptions_total", MetricType::Counter, "Sequences preempted", nullptr, nullptr,
     STAT(num_preemptions)},
    {"lynx:prefix_cache_queries_total", MetricType::Counter, "Tokens looked up in the prefix cache",
     nullptr, nullptr, STAT(prefix_queries)},
    {"lynx:prefix_cache_hits_total", MetricType::Counter, "Tokens found in the prefix cache",
     nullptr, nullptr, STAT(prefix_hits)},
    {"lynx:spec_decode_num_drafts_total", MetricType::Counter, "Draft runs", nullptr, nullptr,
     STAT(num_drafts)},
    {"lynx:spec_decode_num_draft_tokens_total", MetricType::Counter, "Tokens drafted", nullptr,
     nullptr, STAT(draft_tokens)},
    {"lynx:spec_decode_num_accepted_tokens_total", MetricType::Counter, "Drafted tokens accepted",
     nullptr, nullptr, STAT(accepted_tokens)},
    {"lynx:engine_requests_finished_total", MetricType::Counter, "Sequences an engine has ended",
     "finished_reason", "stop", STAT(finished_stop)},
    {"lynx:engine_requests_finished_total", MetricType::Counter, "", "finished_reason", "length",
     STAT(finished_length)},
    {"lynx:engine_requests_finished_total", MetricType::Counter, "", "finished_reason", "abort",
     STAT(finished_abort)},
    {"lynx:engine_requests_finished_total", MetricType::Counter, "", "finished_reason", "error",
     STAT(finished_error)},
    {"lynx:disagg_decision_total", MetricType::Counter, "Where prompts were prefilled",
     "decision_type", "decode-only", STAT(local_prefills)},
    {"lynx:disagg_decision_total", MetricType::Counter, "", "decision_type", "prefill-decode",
     STAT(remote_prefills)},
    {"lynx:engine_steps_total", MetricType::Counter, "Steps of the engine loop", nullptr, nullptr,
     STAT(num_steps)},
    {"lynx:kv_transfer_failed_total", MetricType::Counter, "Hand-offs that failed", nullptr,
     nullptr, STAT(transfers_failed)},
    {"lynx:kv_transfer_received_bytes_total", MetricType::Counter, "KV bytes received by stage",
     "stage", "anchor", STAT(received_bytes[0])},
    {"lynx:kv_transfer_received_bytes_total", MetricType::Counter, "", "stage", "residual",
     STAT(received_bytes[1])},
    {"lynx:kv_transfer_received_bytes_total", MetricType::Counter, "", "stage", "exact",
     STAT(received_bytes[2])},
    {"lynx:kv_transfer_received_chunks_total", MetricType::Counter, "KV chunks received", nullptr,
     nullptr, STAT(received_chunks)},
    {"lynx:kv_transfer_nacks_total", MetricType::Counter, "KV chunks refused", nullptr, nullptr,
     STAT(nacks)},
    {"lynx:kv_transfer_checksum_errors_total", MetricType::Counter,
     "KV chunks with a wrong checksum", nullptr, nullptr, STAT(checksum_errors)},
    {"lynx:kv_transfers_in_flight", MetricType::Gauge, "Hand-offs under way", nullptr, nullptr,
     STAT(transfers_in_flight)},
    {"lynx:kv_transfer_bytes_in_flight", MetricType::Gauge, "KV bytes asked for and not here yet",
     nullptr, nullptr, STAT(transfer_bytes_in_flight)},
    {"lynx:no_progress", MetricType::Gauge, "1: work waits and nothing moves", nullptr, nullptr,
     [](const DaemonState& d) { return d.stuck ? 1.0 : 0.0; }},
    {"lynx:daemon_healthy", MetricType::Gauge, "1: the daemon answers and is ready", nullptr,
     nullptr, [](const DaemonState& d) { return d.healthy ? 1.0 : 0.0; }},
};
#undef STAT

}  // namespace

std::vector<MetricFamily> DaemonMetrics(const std::vector<DaemonState>& daemons,
                                        const std::string& model_name) {
  std::vector<MetricFamily> families;
  for (const StatField& stat : kStats) {
    if (families.empty() || families.back().name != stat.name) {
      families.push_back({.name = stat.name, .help = stat.help, .type = stat.type, .metric = {}});
    }
    for (size_t i = 0; i < daemons.size(); ++i) {
      prometheus::ClientMetric metric;
      metric.label = {
          {"model_name", model_name}, {"engine", std::to_string(i)}, {"role", daemons[i].role}};
      if (stat.label != nullptr) metric.label.push_back({stat.label, stat.label_value});
      (stat.type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) =
          stat.read(daemons[i]);
      families.back().metric.push_back(std::move(metric));
    }
  }
  return families;
}

}  // namespace lynx
