// SPDX-License-Identifier: Apache-2.0
#include "gateway/daemon_metrics.h"

#include <iterator>
#include <utility>

#include "lynx/types.h"
#include "prometheus/client_metric.h"

namespace lynx {
namespace {

using prometheus::ClientMetric;
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

constexpr int64_t kGiB = 1 << 30;

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Of packed KV, under the name of its kv.resident.
template <bool is_8bit>
double PackedTokens(const DaemonState& d) {
  return (d.kv_resident == "8bit") == is_8bit ? static_cast<double>(d.stats.packed_tokens) : 0.0;
}
template <bool is_8bit>
double PackedTokensPerGib(const DaemonState& d) {
  return PackedTokens<is_8bit>(d) * Share(kGiB, d.stats.packed_bytes);
}

#define STAT(field) [](const DaemonState& d) { return static_cast<double>(d.stats.field); }

// Rows of one name stand together: they become one family.
const StatField kStats[] = {
    {"lynx:num_requests_running", MetricType::Gauge, "Sequences being computed", nullptr, nullptr,
     STAT(num_running)},
    {"lynx:num_requests_waiting", MetricType::Gauge, "Sequences waiting for room", nullptr, nullptr,
     STAT(num_waiting)},
    {"lynx:num_requests_waiting_by_reason", MetricType::Gauge,
     "capacity: for room; deferred: for an equal prefix or a prefill daemon", "reason", "capacity",
     [](const DaemonState& d) {
       return static_cast<double>(d.stats.num_waiting - d.stats.num_deferred);
     }},
    {"lynx:num_requests_waiting_by_reason", MetricType::Gauge, "", "reason", "deferred",
     STAT(num_deferred)},
    {"lynx:queue_rejections_total", MetricType::Counter, "Requests refused for lack of room",
     "reason", "max_queue_size", STAT(queue_rejections)},
    {"lynx:queue_rejections_total", MetricType::Counter, "", "reason", "queue_timeout",
     STAT(queue_timeouts)},
    {"lynx:kv_cache_usage_perc", MetricType::Gauge, "Share of KV blocks that are held, 0..1",
     nullptr, nullptr,
     [](const DaemonState& d) {
       return Share(d.stats.blocks_request + d.stats.blocks_transfer, d.stats.blocks_total);
     }},
    {"lynx:kv_blocks", MetricType::Gauge, "KV blocks by owner", "state", "free", STAT(blocks_free)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "request", STAT(blocks_request)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "transfer", STAT(blocks_transfer)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "cached", STAT(blocks_cached)},
    {"lynx:kv_blocks", MetricType::Gauge, "", "state", "packed", STAT(blocks_packed)},
    {"lynx:kv_blocks_capacity", MetricType::Gauge, "KV blocks of the pool", nullptr, nullptr,
     STAT(blocks_total)},
    {"lynx:kv_tokens_per_gib", MetricType::Gauge,
     "Tokens of context that a GiB holds; exact, 8bit: as packed now, 0: nothing is", "resident",
     "bf16", [](const DaemonState& d) { return kBlockSize * Share(kGiB, d.stats.block_bytes); }},
    {"lynx:kv_tokens_per_gib", MetricType::Gauge, "", "resident", "exact",
     PackedTokensPerGib<false>},
    {"lynx:kv_tokens_per_gib", MetricType::Gauge, "", "resident", "8bit", PackedTokensPerGib<true>},
    {"lynx:prefix_cache_tokens", MetricType::Gauge,
     "Tokens that the prefix cache keeps beside those in use", "resident", "bf16",
     [](const DaemonState& d) { return static_cast<double>(d.stats.blocks_cached * kBlockSize); }},
    {"lynx:prefix_cache_tokens", MetricType::Gauge, "", "resident", "exact", PackedTokens<false>},
    {"lynx:prefix_cache_tokens", MetricType::Gauge, "", "resident", "8bit", PackedTokens<true>},
    {"lynx:prefix_cache_packed_tokens_total", MetricType::Counter,
     "Tokens that the prefix cache has encoded", nullptr, nullptr, STAT(encoded_tokens)},
    {"lynx:prefix_cache_restored_tokens_total", MetricType::Counter,
     "Tokens found in the prefix cache that had to be decoded", nullptr, nullptr,
     STAT(restored_tokens)},
    {"lynx:kv_pack_seconds_total", MetricType::Counter, "Time spent on packed KV", "operation",
     "encode", [](const DaemonState& d) { return 1e-9 * static_cast<double>(d.stats.pack_ns); }},
    {"lynx:kv_pack_seconds_total", MetricType::Counter, "", "operation", "decode",
     [](const DaemonState& d) { return 1e-9 * static_cast<double>(d.stats.unpack_ns); }},
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
    {"lynx:spec_decode_num_self_draft_tokens_total", MetricType::Counter,
     "Of the tokens drafted: by self-speculation while decoding", nullptr, nullptr,
     STAT(self_draft_tokens)},
    {"lynx:spec_decode_num_self_accepted_tokens_total", MetricType::Counter, "Of those, accepted",
     nullptr, nullptr, STAT(self_accepted_tokens)},
    {"lynx:spec_decode_num_source_rounds_total", MetricType::Counter,
     "Rounds of drafts judged by the prefill side", nullptr, nullptr, STAT(source_rounds)},
    {"lynx:spec_decode_num_source_tokens_total", MetricType::Counter,
     "Tokens after the first that the prefill side made final", nullptr, nullptr,
     STAT(source_tokens)},
    {"lynx:spec_decode_num_source_refusals_total", MetricType::Counter,
     "Attempts whose drafts the prefill side could not judge", nullptr, nullptr,
     STAT(source_refusals)},
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
    {"lynx:prefill_daemons_ejected", MetricType::Gauge,
     "Prefill daemons that are passed over because their last hand-off here has failed", nullptr,
     nullptr, STAT(prefills_ejected)},
    {"lynx:prefill_ejections_total", MetricType::Counter,
     "Failed hand-offs that had a prefill daemon passed over for a while", nullptr, nullptr,
     STAT(prefill_ejections)},
    {"lynx:kv_lease_expired_total", MetricType::Counter,
     "Hand-offs that their receiver did not renew", nullptr, nullptr, STAT(leases_expired)},
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

// With the labels that all have.
ClientMetric Labelled(const std::vector<DaemonState>& daemons, size_t index,
                      const std::string& model_name) {
  ClientMetric metric;
  metric.label = {
      {"model_name", model_name}, {"engine", std::to_string(index)}, {"role", daemons[index].role}};
  return metric;
}

// What is fixed about a daemon's cache, as labels. Daemons that have not answered yet are left out.
MetricFamily CacheConfig(const std::vector<DaemonState>& daemons, const std::string& model_name) {
  MetricFamily family{.name = "lynx:cache_config_info",
                      .help = "1; the labels say how the KV cache is set up",
                      .type = MetricType::Gauge,
                      .metric = {}};
  for (size_t i = 0; i < daemons.size(); ++i) {
    const DaemonState& d = daemons[i];
    if (d.block_size == 0 || d.stats.blocks_total == 0) continue;
    ClientMetric metric = Labelled(daemons, i, model_name);
    metric.label.push_back({"block_size", std::to_string(d.block_size)});
    metric.label.push_back({"num_blocks", std::to_string(d.stats.blocks_total)});
    metric.label.push_back({"cache_dtype", d.kv_dtype});
    metric.label.push_back({"resident", d.kv_resident});
    metric.label.push_back({"codec", d.codec});
    metric.gauge.value = 1;
    family.metric.push_back(std::move(metric));
  }
  return family;
}

MetricFamily AcceptedByPosition(const std::vector<DaemonState>& daemons,
                                const std::string& model_name) {
  MetricFamily family{.name = "lynx:spec_decode_num_accepted_tokens_per_pos_total",
                      .help =
                          "Drafted tokens accepted, by position in the run of drafts; the last "
                          "position counts all from there on",
                      .type = MetricType::Counter,
                      .metric = {}};
  for (size_t i = 0; i < daemons.size(); ++i) {
    for (int position = 0; position < EngineStats::kNumDraftPositions; ++position) {
      ClientMetric metric = Labelled(daemons, i, model_name);
      metric.label.push_back({"position", std::to_string(position)});
      metric.counter.value = static_cast<double>(daemons[i].stats.accepted_at[position]);
      family.metric.push_back(std::move(metric));
    }
  }
  return family;
}

MetricFamily StepRows(const std::vector<DaemonState>& daemons, const std::string& model_name) {
  MetricFamily family{.name = "lynx:iteration_tokens_total",
                      .help = "Tokens that one step of the engine computes",
                      .type = MetricType::Histogram,
                      .metric = {}};
  for (size_t i = 0; i < daemons.size(); ++i) {
    const EngineStats& stats = daemons[i].stats;
    ClientMetric metric = Labelled(daemons, i, model_name);
    for (size_t b = 0; b < std::size(EngineStats::kStepRowLimits); ++b) {
      metric.histogram.bucket.push_back(
          {.cumulative_count = static_cast<uint64_t>(stats.step_rows_le[b]),
           .upper_bound = static_cast<double>(EngineStats::kStepRowLimits[b])});
    }
    metric.histogram.sample_count = static_cast<uint64_t>(*std::rbegin(stats.step_rows_le));
    metric.histogram.sample_sum = static_cast<double>(stats.step_rows);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

std::vector<MetricFamily> DaemonMetrics(const std::vector<DaemonState>& daemons,
                                        const std::string& model_name) {
  std::vector<MetricFamily> families;
  for (const StatField& stat : kStats) {
    if (families.empty() || families.back().name != stat.name) {
      families.push_back({.name = stat.name, .help = stat.help, .type = stat.type, .metric = {}});
    }
    for (size_t i = 0; i < daemons.size(); ++i) {
      ClientMetric metric = Labelled(daemons, i, model_name);
      if (stat.label != nullptr) metric.label.push_back({stat.label, stat.label_value});
      (stat.type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) =
          stat.read(daemons[i]);
      families.back().metric.push_back(std::move(metric));
    }
  }
  families.push_back(CacheConfig(daemons, model_name));
  families.push_back(AcceptedByPosition(daemons, model_name));
  families.push_back(StepRows(daemons, model_name));
  return families;
}

}  // namespace lynx
